
# bash splits words at "=": drop it, so that shtab's function sees --name=value as --name value.
_shardmill_without_equals() {
  local -a words=()
  local index cword=$COMP_CWORD
  for index in "${!COMP_WORDS[@]}"; do
    if [[ ${COMP_WORDS[index]} != = ]]; then
      words+=("${COMP_WORDS[index]}")
    elif (( index == COMP_CWORD )); then
      words+=("")
    elif (( index < COMP_CWORD )); then
      (( cword-- ))
    fi
  done
  local -a COMP_WORDS=("${words[@]}")
  local COMP_CWORD=$cword
  _shtab_shardmill
}
complete -o bashdefault -F _shardmill_without_equals shardmill
