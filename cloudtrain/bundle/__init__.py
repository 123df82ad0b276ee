"""The user's code as one archive, named by its content.

    from cloudtrain.bundle.tree import scan                            # read the folder: what is in, and its hash
    from cloudtrain.bundle.findings import secret_findings, size_findings
    from cloudtrain.bundle.unpack import unpack                        # the other side; standard library only

Nothing is imported here, so that the side that unpacks does not pay for the side that packs.
"""
