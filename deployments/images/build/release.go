package main

import (
	"errors"
	"os"
	"runtime"
	"strings"
)

// native is this machine's architecture.
const native = runtime.GOARCH

// release returns this machine's distribution: "debian-12".
func release() (string, error) {
	data, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return "", err
	}
	var id, version string
	for line := range strings.Lines(string(data)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch value = strings.Trim(value, `"`); name {
		case "ID":
			id = value
		case "VERSION_ID":
			version = value
		}
	}
	if id != "debian" && id != "ubuntu" {
		return "", errors.New("this machine runs neither Debian nor Ubuntu, from whose packages a base is assembled; name one with --base")
	}
	return id + "-" + version, nil
}
