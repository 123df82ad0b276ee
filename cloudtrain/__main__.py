"""`python -m cloudtrain` is the `cloudtrain` command."""

from cloudtrain.cli import main

if __name__ == "__main__":
    main()
