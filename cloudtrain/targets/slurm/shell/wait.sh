wait $!
status=$?
while kill -0 $! 2>/dev/null; do wait $!; status=$?; done
