"""Derive the argv and environment of every process on the instances from the body of an Azure ML job.

None of this was recorded on Azure. The sources are Microsoft's documentation ("Distributed GPU training guide", and the
TensorFlow guides), code that reads the service's variables (DeepSpeed's `comm.py`, hi-ml, Microsoft's own examples),
and environments that users have published. A variable that these sources do not mention is left out, or the docstring
of its function says that it is inferred.

    body          the fields of the request that determine the processes
    layout        the addresses of the instances, and the paths of data and code: on the service, or in an emulation
    places        paths of inputs and outputs, and the command in which they replace `${{...}}`
    variables     the environment variables that every process gets
    distributions the processes and variables of each distribution: PyTorch, Mpi, TensorFlow, none
    tf_config     TF_CONFIG
    processes     combines these parts into the list of processes

Start reading at `cloudtrain.targets.azureml.launch.job`.
"""
