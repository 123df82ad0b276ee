
# The values of the job's secrets are read here, and stand in no file.
secrets=$(@python@ -m cloudtrain.runtime.secret_values 2>"$logs/secrets") ||
  { note broken "$(sed -n 's/^error: //p' "$logs/secrets")"; cat "$logs/secrets" >&2; exit 1; }
eval "$secrets"
unset secrets
rm -f "$logs/secrets"
