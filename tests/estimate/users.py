"""Training scripts as users write them, by kind: with torch alone, and with libraries on top of it."""

NANO = """
    import math, os, time, torch
    import numpy as np
    from contextlib import nullcontext
    from torch import nn
    from torch.nn import functional as F

    batch_size, block_size, n_embd, n_head, n_layer, vocab = 4, 64, 128, 4, 2, 512
    gradient_accumulation_steps, grad_clip, dtype, device = 2, 1.0, "bfloat16", "cuda"
    torch.manual_seed(1337)
    torch.backends.cuda.matmul.allow_tf32 = True
    ptdtype = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[dtype]
    ctx = torch.amp.autocast(device_type="cuda", dtype=ptdtype)
    np.arange(10_000, dtype=np.uint16).tofile("train.bin")

    def get_batch():
        data = np.memmap("train.bin", dtype=np.uint16, mode="r")
        ix = torch.randint(len(data) - block_size, (batch_size,))
        x = torch.stack([torch.from_numpy(data[i : i + block_size].astype(np.int64)) for i in ix]) % vocab
        y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + block_size].astype(np.int64)) for i in ix]) % vocab
        return x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(device, non_blocking=True)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
            self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
            self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))
            self.register_buffer("bias", torch.tril(torch.ones(block_size, block_size))[None, None])

        def forward(self, x):
            B, T, C = x.size()
            q, k, v = self.c_attn(self.ln_1(x)).split(n_embd, dim=2)
            q, k, v = (part.view(B, T, n_head, C // n_head).transpose(1, 2) for part in (q, k, v))
            att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            att = F.softmax(att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf")), dim=-1)
            x = x + self.c_proj((F.dropout(att, 0.1) @ v).transpose(1, 2).contiguous().view(B, T, C))
            return x + self.mlp(self.ln_2(x))

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(vocab, n_embd), nn.Embedding(block_size, n_embd)
            self.h = nn.ModuleList(Block() for _ in range(n_layer))
            self.lm_head = nn.Linear(n_embd, vocab, bias=False)
            self.wte.weight = self.lm_head.weight
            for name, p in self.named_parameters():
                if name.endswith("c_proj.weight"):
                    torch.nn.init.normal_(p, mean=0.0, std=0.02 / math.sqrt(2 * n_layer))

        def forward(self, idx, targets=None):
            pos = torch.arange(0, idx.size(1), dtype=torch.long, device=idx.device)
            x = self.wte(idx) + self.wpe(pos)
            for block in self.h:
                x = block(x)
            logits = self.lm_head(x)
            return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)

    model = GPT()
    model.to(device)
    print("number of parameters: %.2fM" % (sum(p.numel() for p in model.parameters()) / 1e6,))
    scaler = torch.cuda.amp.GradScaler(enabled=(dtype == "float16"))
    decay = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), fused=True)
    model = torch.compile(model)

    @torch.no_grad()
    def estimate_loss():
        model.eval()
        losses = torch.zeros(3)
        for k in range(3):
            X, Y = get_batch()
            with ctx:
                logits, loss = model(X, Y)
            losses[k] = loss.item()
        model.train()
        return losses.mean()

    best_val_loss, iter_num = 1e9, 0
    X, Y = get_batch()
    while True:
        if iter_num % 2 == 0:
            loss = estimate_loss()
            print(f"step {iter_num}: val loss {loss:.4f}")
            if loss < best_val_loss:
                best_val_loss = loss
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "ckpt.pt")
        for micro_step in range(gradient_accumulation_steps):
            with ctx:
                logits, loss = model(X, Y)
                loss = loss / gradient_accumulation_steps
            X, Y = get_batch()
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        print(f"iter {iter_num}: loss {loss.item() * gradient_accumulation_steps:.4f}")
        iter_num += 1
"""

TORCHVISION = """
    import copy, datetime, time, torch
    from collections import defaultdict, deque
    from torch import nn

    class SmoothedValue:
        def __init__(self, window_size=20, fmt="{median:.4f} ({global_avg:.4f})"):
            self.deque, self.total, self.count, self.fmt = deque(maxlen=window_size), 0.0, 0, fmt

        def update(self, value, n=1):
            self.deque.append(value)
            self.count += n
            self.total += value * n

        def __str__(self):
            d = torch.tensor(list(self.deque), dtype=torch.float32)
            return self.fmt.format(median=d.median().item(), global_avg=self.total / self.count)

    def accuracy(output, target, topk=(1,)):
        with torch.inference_mode():
            maxk = max(topk)
            if target.ndim == 2:
                target = target.max(dim=1)[1]
            _, pred = output.topk(maxk, 1, True, True)
            correct = pred.t().eq(target[None])
            return [correct[:k].flatten().sum(dtype=torch.float32) * (100.0 / target.size(0)) for k in topk]

    class ExponentialMovingAverage(torch.optim.swa_utils.AveragedModel):
        def __init__(self, model, decay, device="cpu"):
            super().__init__(model, device, lambda avg, new, _: decay * avg + (1 - decay) * new, use_buffers=True)

    def block(a, b):
        return nn.Sequential(nn.Conv2d(a, b, 3, 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True))

    class Pictures(torch.utils.data.Dataset):
        def __len__(self):
            return 256

        def __getitem__(self, index):
            return torch.full((3, 64, 64), index / 256), index % 10

    device = torch.device("cuda")
    torch.backends.cudnn.benchmark = True
    sampler = torch.utils.data.RandomSampler(Pictures())
    loader = torch.utils.data.DataLoader(
        Pictures(), batch_size=16, sampler=sampler, num_workers=4, pin_memory=True, prefetch_factor=2
    )
    model = nn.Sequential(block(3, 32), block(32, 64), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    model.to(device)
    model = model.to(memory_format=torch.channels_last)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, nesterov=True)
    scaler = torch.amp.GradScaler("cuda")
    main = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=90)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.01, total_iters=5)
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, main], milestones=[5])
    ema = ExponentialMovingAverage(model, decay=0.9, device=device)
    meters = defaultdict(SmoothedValue)
    for epoch in range(2):
        model.train()
        started = time.time()
        for i, (image, target) in enumerate(loader):
            image, target = image.to(device), target.to(device)
            with torch.amp.autocast("cuda", enabled=True):
                output = model(image)
                loss = criterion(output, target)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            ema.update_parameters(model)
            acc1, acc5 = accuracy(output, target, topk=(1, 5))
            meters["loss"].update(loss.item())
            meters["acc1"].update(acc1.item(), n=image.shape[0])
            memory = torch.cuda.max_memory_allocated() / 2**20
            eta = str(datetime.timedelta(seconds=int(time.time() - started)))
            print(f"[{i}/{len(loader)}] eta: {eta} {meters['loss']} {meters['acc1']} max mem: {memory:.0f}")
        scheduler.step()
"""

PRINTS = """
    import numpy as np, torch
    from torch import nn
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 5)).to("cuda:0")
    print(model, next(model.parameters()).device, next(model.parameters())[0, :3])
    optimizer = torch.optim.Adam(model.parameters())
    losses, correct, seen, history = [], 0, 0, np.zeros(20)
    for step in range(20):
        x = torch.randn(16, 32, device="cuda:0")
        y = torch.randint(0, 5, (16,), device="cuda:0")
        out = model(x)
        print(x.shape, x.mean().item(), out.min().item(), out.max().item(), out.std().item())
        loss = nn.functional.cross_entropy(out, y)
        if torch.isnan(loss).any():
            raise ValueError("the loss is not a number")
        if loss.item() > 100:
            print("a large loss", loss)
        if step and loss.item() > losses[-1]:
            for group in optimizer.param_groups:
                group["lr"] *= 0.9
        losses.append(loss.item())
        history[step] = loss.detach().cpu().numpy()
        correct += (out.argmax(dim=1) == y).sum().item()
        seen += len(y)
        optimizer.zero_grad()
        loss.backward()
        for name, parameter in model.named_parameters():
            print(name, parameter.grad.norm().item(), parameter.grad.abs().max().tolist())
        optimizer.step()
        print(f"{step}: {loss.item():.4f} {np.mean(losses):.4f} {correct / seen:.2%} {out[0].tolist()}")
"""

FUNCTION = """
    import torch
    from torch import nn

    class Swish(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, scale):
            ctx.save_for_backward(x)
            ctx.scale = scale
            return x * torch.sigmoid(scale * x)

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            gate = torch.sigmoid(ctx.scale * x)
            assert gradient.is_cuda and gradient.shape == x.shape
            return gradient * (gate + ctx.scale * x * gate * (1 - gate)), None

    class Kept(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
        def forward(ctx, x):
            ctx.mark_non_differentiable(rank := x.argsort())
            return x.exp(), rank

        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")
        def backward(ctx, gradient, _rank):
            return gradient

    model = nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 256)).cuda()
    optimizer = torch.optim.RMSprop(model.parameters())
    for step in range(5):
        x = torch.randn(64, 256).cuda()
        with torch.autocast("cuda", torch.bfloat16):
            y, rank = Kept.apply(Swish.apply(model[0](x), 1.5))
            loss = model[1](y).float().pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""

TRAINER = """
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    class Words(torch.utils.data.Dataset):
        def __len__(self):
            return 64

        def __getitem__(self, index):
            words = torch.arange(64) + index
            return {"input_ids": words, "labels": words}

    model = GPT2LMHeadModel(GPT2Config(vocab_size=512, n_positions=64, n_embd=128, n_layer=2, n_head=4))
    arguments = TrainingArguments(
        "out", per_device_train_batch_size=4, gradient_accumulation_steps=2, bf16=True, logging_steps=1,
        report_to=[], save_steps=1, eval_strategy="steps", eval_steps=1, num_train_epochs=1,
    )
    Trainer(model, arguments, train_dataset=Words(), eval_dataset=Words()).train()
"""

LORA = """
    from datasets import Dataset
    from peft import LoraConfig
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    words = Tokenizer(models.WordLevel({"[UNK]": 0, "[PAD]": 1, "[EOS]": 2, "red": 3, "blue": 4}, "[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    names = dict(unk_token="[UNK]", pad_token="[PAD]", eos_token="[EOS]")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, **names)
    sizes = dict(hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=512, pad_token_id=1, **sizes))
    rows = Dataset.from_dict({"text": ["red blue " * 20] * 64})
    arguments = SFTConfig(
        "out", per_device_train_batch_size=4, max_length=64, logging_steps=1, report_to=[], bf16=True,
        num_train_epochs=1,
    )
    lora = LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    SFTTrainer(model, arguments, train_dataset=rows, processing_class=tokenizer, peft_config=lora).train()
"""

LIGHTNING = """
    import lightning as L, torch
    from torch import nn

    class Net(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.save_hyperparameters()
            self.net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 4))

        def training_step(self, batch, index):
            x, y = batch
            loss = nn.functional.cross_entropy(self.net(x), y)
            self.log("loss", loss, prog_bar=True, sync_dist=True)
            return loss

        def validation_step(self, batch, index):
            self.log("val_loss", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    data = torch.utils.data.TensorDataset(torch.randn(256, 64), torch.randint(0, 4, (256,)))
    loader = torch.utils.data.DataLoader(data, batch_size=32, num_workers=2)
    trainer = L.Trainer(max_epochs=2, accelerator="gpu", devices=1, precision="bf16-mixed", log_every_n_steps=1)
    trainer.fit(Net(), loader, loader)
"""

ACCELERATE = """
    import torch
    from accelerate import Accelerator
    from torch import nn

    accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.utils.data.TensorDataset(torch.randn(256, 64), torch.randint(0, 4, (256,)))
    loader = torch.utils.data.DataLoader(data, batch_size=32, shuffle=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    for epoch in range(2):
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            mean = accelerator.gather(loss.detach()).mean().item()
            accelerator.print(f"loss {mean:.4f}")
        accelerator.save_state("state")
"""
