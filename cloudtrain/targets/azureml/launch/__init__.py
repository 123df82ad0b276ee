"""From an Azure ML job's body to the argv and environment on its instances, process by process.

Nothing here was recorded on Azure. The sources are Microsoft's documentation ("Distributed GPU training guide", and the
TensorFlow guides), code that reads the service's variables (DeepSpeed's `comm.py`, hi-ml, Microsoft's own examples),
and environments that users have published. If these sources are silent, a variable is left out, or its docstring says
that it is inferred.

    body          the parts of the request that decide what starts
    layout        the locations of the instances, their data and their code: on the service, or in an emulation
    places        paths of inputs and outputs, and the command with them in place of `${{...}}`
    variables     the environment that every process gets
    distributions the additions of each distribution: PyTorch, Mpi, TensorFlow, none
    tf_config     TF_CONFIG
    processes     combines the parts into all processes

Start reading at `cloudtrain.targets.azureml.launch.job`.
"""
