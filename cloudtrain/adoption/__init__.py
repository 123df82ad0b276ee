"""`cloudtrain adopt`: turn any training job into a cloudtrain job, and prove that both send the same request.

sources     recognizes the format of a document, and reads the jobs in it   -> Original
proof       drafts a job file, compiles the job, compares the requests       -> Adoption
writing     writes the job file and its settings as text, with comments
comparison  lists the differences between two requests, with their reasons

Code for a specific service is in the folder of the service's target (`cloudtrain/targets/NAME/adopt`, reached through
`Target.adopter`).
"""
