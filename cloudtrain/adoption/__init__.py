"""`cloudtrain adopt`: any training job that people have today as a cloudtrain job, proven equal.

sources     tells what was named apart, and reads it                      -> originals
proof       draft, write, read back, compile, compare                     -> Adoption
writing     the job file and its settings as text, with comments
comparison  what differs, and why

What knows a service stands with its target (`cloudtrain/targets/NAME/adopt`, behind `Target.adopter`).
"""
