"""A line fitted to points, configured by Hydra: `python train.py optimizer.lr=0.2`, or the job examples/hydra.yaml."""

import hydra
import torch
from omegaconf import DictConfig

from cloudtrain.runtime import integrations, report


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(config: DictConfig) -> None:
    """Report the loss of every step."""
    torch.manual_seed(1)
    x = torch.linspace(-1, 1, 64).unsqueeze(1)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=config.optimizer.lr)
    for step in range(1, config.steps + 1):
        loss = (model(x) - config.slope * x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        report(step=step, total=config.steps, loss=loss)
    print(f"{config.note}: learning rate {config.optimizer.lr}, sizes {config.sizes}")


if __name__ == "__main__":
    integrations.pass_to_hydra()
    main()
