"""Compute the files, variables and argv in the containers of a SageMaker job from the CreateTrainingJob body.

The reference is the code of sagemaker-training 5.1.1 to 5.1.4, sagemaker-pytorch-training 3.0.0 and
sagemaker-tensorflow-training 20.4.1. `tests/golden/sagemaker_container` records their behaviour with real requests.

    container     the contents of an image, and the differences between versions of the toolkit
    hosts         the hosts of a job, and the files in `/opt/ml/input/config`
    keys          the hyperparameters that the toolkit reads
    host_setup    one host of one job, as the toolkit sees it
    variables     the environment that the toolkit gives the script
    tf_config     TF_CONFIG and the parameter servers
    program       the script with its arguments
    mpirun        the command lines of MPI and of the data-parallel library
    commands      the launcher that starts, and its argv
    shell         how toolkits up to 5.1.2 change arguments, because they use a shell
    ranks         the ranks of mpirun, host by host
    own_launcher  the processes of jobs that start cloudtrain's launcher instead of the toolkit
    processes     all processes, host by host, for the plan

Start reading at `cloudtrain.targets.sagemaker.launch.job`.
"""
