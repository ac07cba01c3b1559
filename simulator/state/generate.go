package state

//go:generate ./generate.sh
