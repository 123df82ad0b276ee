source common.sh

unset LC_ALL
bash -l "$1" </dev/null 2>&1
