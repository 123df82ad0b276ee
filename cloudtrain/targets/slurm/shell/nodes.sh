source common.sh
sinfo --noheader --Node --format='%N|%R|%T|%c|%m|%G|%f'
