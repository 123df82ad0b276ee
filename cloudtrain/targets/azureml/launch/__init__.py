"""What runs on the instances of an Azure ML job: from the job's body to argv and environment, process by process.

Nothing here was recorded on Azure. It follows Microsoft's documentation ("Distributed GPU training guide", and the
TensorFlow guides), code that reads what the service sets (DeepSpeed's `comm.py`, hi-ml, Microsoft's own examples),
and environments that users have published. Where these say nothing, a variable is left out, or its docstring says
that it is inferred.

    body          the parts of the request that decide what starts
    layout        where the instances, their data and their code are: on the service, or in an emulation
    places        paths of inputs and outputs, and the command with them in place of `${{...}}`
    variables     what every process finds in its environment
    distributions what each distribution adds: PyTorch, Mpi, TensorFlow, none
    tf_config     TF_CONFIG
    processes     all of it together

`cloudtrain.targets.azureml.launch.job` is the way in.
"""
