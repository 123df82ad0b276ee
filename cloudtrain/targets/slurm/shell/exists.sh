if [ -e "$1" ]; then echo yes; fi
