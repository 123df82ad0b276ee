"""The catalogue: tables of instance types, images and versions with the source of each row, and queries on them."""
