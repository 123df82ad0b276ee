"""`cloudtrain adopt`: turn any training job into a cloudtrain job, and prove that both send the same.

sources     tells what was named apart, and reads it                      -> originals
proof       draft, write, read back, compile, compare                     -> Adoption
writing     the job file and its settings as text, with comments
comparison  what differs, and why

Code that knows a service is in the folder of its target (`cloudtrain/targets/NAME/adopt`, behind `Target.adopter`).
"""
