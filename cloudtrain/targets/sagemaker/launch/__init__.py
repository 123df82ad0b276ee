"""What runs inside the containers of a SageMaker job: from a CreateTrainingJob body to files, variables and argv.

The truth is the code of sagemaker-training 5.1.1 to 5.1.4, sagemaker-pytorch-training 3.0.0 and
sagemaker-tensorflow-training 20.4.1, run with recorded requests;
`tests/golden/sagemaker_container` holds what they did.

    container     what an image contains, and what each version of the toolkit does differently
    hosts         the hosts of a job, and the files in `/opt/ml/input/config`
    keys          the hyperparameters that the toolkit reads
    host_setup    one host of one job, as the toolkit sees it
    variables     the environment that the toolkit gives the script
    tf_config     TF_CONFIG and the parameter servers
    program       the script with its arguments
    mpirun        the command lines of MPI and of the data-parallel library
    commands      which launcher starts, and its argv
    shell         what is left of an argument after the shell of toolkits up to 5.1.2
    ranks         ranks on the hosts where their launchers put them
    own_launcher  the same for jobs that start cloudtrain's own launcher
    processes     everything together, host by host, for the plan

`cloudtrain.targets.sagemaker.launch.job` is the way in.
"""
