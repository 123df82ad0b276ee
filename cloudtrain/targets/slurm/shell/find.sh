source common.sh
run=$1 name=$2
source find_job.sh
find_job
