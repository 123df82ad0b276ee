"""`python -m cloudtrain` is the `cloudtrain` command."""

from cloudtrain.cli import command

if __name__ == "__main__":
    command()
