code=/
note() {
  printf 'error: the lines of `setup` in [slurm] ended the script: %s\n' "$(tail -n 1 @log@)" >&3
  printf 'hint: their output is in `%s`\n' @log@ >&3
}
exec 3>&1 >@log@ 2>&1
@setup@
exec >&3 2>&1 3>&-
