#!/bin/sh
# Runs @SCRIPT@ with the Node.js of this directory, wherever the directory lies; also through a symbolic link.
here=$0
while [ -h "$here" ]; do
  link=$(readlink "$here")
  case $link in
    /*) here=$link ;;
    *) here=${here%/*}/$link ;;
  esac
done
case $here in
  */*) root=${here%/*}/.. ;;
  *) root=.. ;;
esac
exec "$root/runtime/node" "$root/@SCRIPT@" "$@"
