"""The commands, one a file. `cloudtrain.cli.app` has the table of them."""
