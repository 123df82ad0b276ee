"""The user's code as one archive, named by the hash of its content.

    from cloudtrain.bundle.tree import scan                            # read the folder: its content and hash
    from cloudtrain.bundle.findings import secret_findings, size_findings
    from cloudtrain.bundle.unpack import unpack                        # uses only the standard library

This module imports nothing, so that unpacking does not load the code for packing.
"""
