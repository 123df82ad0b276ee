if [ -x "$1/bin/python" ]; then touch "$1/.."; echo yes; fi
