"""`cloudtrain adopt`: turn any training job into a cloudtrain job, and prove that both send the same request.

sources     recognizes what the source is, and reads it                   -> originals
proof       drafts, writes, reads back, compiles, compares                -> Adoption
writing     writes the job file and its settings as text, with comments
comparison  lists the differences and their reasons

Code that knows a service is in the folder of its target (`cloudtrain/targets/NAME/adopt`, behind `Target.adopter`).
"""
