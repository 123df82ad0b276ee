"""The commands, one per file. `cloudtrain.cli.app` lists them."""
