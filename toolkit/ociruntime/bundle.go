package main

// This file reads and changes the configuration of a container that is being
// created: config.json of its OCI bundle. Unchanged parts keep their text, including
// unknown keys of a later version of the specification.

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	oci "github.com/opencontainers/runtime-spec/specs-go"
)

// maxBytes limits the size of a configuration. Runtimes write about 100 KiB with a long
// seccomp profile.
const maxBytes = 16 << 20

// containerConfig is a container's configuration.
type containerConfig struct {
	// Spec holds only the known parts, to be read and edited: process.env, .user and
	// .capabilities; mounts; hooks; annotations; and of linux devices, namespaces,
	// resources.devices, netDevices and intelRdt.
	Spec *oci.Spec

	path string
	info os.FileInfo
	parts
}

// parts are the objects in which single keys change.
type parts struct {
	top, process, user, hooks, linux, resources *object
}

// readConfig reads a configuration. Its error names the file.
func readConfig(path string) (*containerConfig, error) {
	data, info, err := read(path)
	if err != nil {
		return nil, fmt.Errorf("container's configuration: %w", err)
	}
	c, err := decode(data)
	if err != nil {
		return nil, fmt.Errorf("container's configuration %s: %w", path, err)
	}
	c.path, c.info = path, info
	return c, nil
}

func read(path string) ([]byte, os.FileInfo, error) {
	// Runtimes write a regular file. A link would be replaced; a pipe would block.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ELOOP) {
		return nil, nil, fmt.Errorf("%s is a symbolic link; put the file itself there", path)
	}
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("%s is no regular file", path)
	}
	if info.Size() > maxBytes {
		return nil, nil, fmt.Errorf("%s has %d bytes, more than %d", path, info.Size(), maxBytes)
	}
	data := make([]byte, 0, info.Size()+1)
	b := bytes.NewBuffer(data)
	if _, err := b.ReadFrom(io.LimitReader(f, maxBytes+1)); err != nil {
		return nil, nil, err
	}
	if b.Len() > maxBytes {
		return nil, nil, fmt.Errorf("%s has more than %d bytes", path, maxBytes)
	}
	return b.Bytes(), info, nil
}

func decode(data []byte) (*containerConfig, error) {
	c := &containerConfig{Spec: &oci.Spec{}}
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, errors.New("is empty")
	}
	if err := valid(data); err != nil {
		return nil, err
	}
	if err := c.split(data); err != nil {
		return nil, err
	}
	annotations, err := parseObject(c.top.get("annotations"))
	if err != nil {
		return nil, fmt.Errorf("annotations: %w", err)
	}
	for _, part := range []struct {
		name string
		raw  json.RawMessage
		into any
	}{
		{"mounts", c.top.get("mounts"), &c.Spec.Mounts},
		{"annotations", annotations.encode(), &c.Spec.Annotations},
		{"hooks", c.top.get("hooks"), &c.Spec.Hooks},
	} {
		if err := unmarshal(part.raw, part.into); err != nil {
			return nil, fmt.Errorf("%s: %w", part.name, err)
		}
	}
	if len(c.process.keys) > 0 {
		if err := c.decodeProcess(); err != nil {
			return nil, fmt.Errorf("process: %w", err)
		}
	}
	if len(c.linux.keys) > 0 {
		if err := c.decodeLinux(); err != nil {
			return nil, fmt.Errorf("linux: %w", err)
		}
	}
	return c, nil
}

// split parses the objects.
func (c *containerConfig) split(data []byte) (err error) {
	if c.top, err = parseObject(data, "process", "mounts", "hooks", "annotations", "linux"); err != nil {
		return err
	}
	for _, part := range []struct {
		name  string
		of    **object
		key   string
		into  **object
		known []string
	}{
		{"process", &c.top, "process", &c.process, []string{"env", "user", "capabilities"}},
		{"process.user", &c.process, "user", &c.user, []string{"uid", "gid", "additionalGids"}},
		{"hooks", &c.top, "hooks", &c.hooks, hookNames},
		{"linux", &c.top, "linux", &c.linux, []string{"devices", "namespaces", "resources", "netDevices", "intelRdt"}},
		{"linux.resources", &c.linux, "resources", &c.resources, []string{"devices"}},
	} {
		if *part.into, err = parseObject((*part.of).get(part.key), part.known...); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return nil
}

func (c *containerConfig) decodeProcess() error {
	p := &oci.Process{}
	c.Spec.Process = p
	return errors.Join(
		unmarshal(c.process.get("env"), &p.Env),
		unmarshal(c.process.get("user"), &p.User),
		unmarshal(c.process.get("capabilities"), &p.Capabilities),
	)
}

func (c *containerConfig) decodeLinux() error {
	l := &oci.Linux{}
	c.Spec.Linux = l
	err := errors.Join(
		unmarshal(c.linux.get("devices"), &l.Devices),
		unmarshal(c.linux.get("namespaces"), &l.Namespaces),
		unmarshal(c.linux.get("netDevices"), &l.NetDevices),
		unmarshal(c.linux.get("intelRdt"), &l.IntelRdt),
	)
	if raw := c.resources.get("devices"); raw != nil && err == nil {
		l.Resources = &oci.LinuxResources{}
		err = unmarshal(raw, &l.Resources.Devices)
	}
	return err
}

func unmarshal(raw json.RawMessage, into any) error {
	if raw == nil {
		return nil
	}
	return json.Unmarshal(raw, into)
}

// Write atomically replaces the file with the edited configuration. It does nothing if
// nothing has changed.
func (c *containerConfig) Write() error {
	changed, err := c.merge()
	if err != nil {
		return fmt.Errorf("container's configuration %s: %w", c.path, err)
	}
	if !changed {
		return nil
	}
	data := c.top.encode()
	if len(data) > maxBytes {
		return fmt.Errorf("container's configuration %s: would have %d bytes with its devices, more than %d", c.path, len(data), maxBytes)
	}
	if err := c.replace(data); err != nil {
		return fmt.Errorf("container's configuration: %w", err)
	}
	return nil
}

// replace replaces the file without syncing it: a container does not survive a reboot.
func (c *containerConfig) replace(data []byte) error {
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails, as crypto/rand says
	temp := filepath.Join(filepath.Dir(c.path), ".config.json."+hex.EncodeToString(random[:])+".tmp")
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if stat, ok := c.info.Sys().(*syscall.Stat_t); ok && err == nil && (int(stat.Uid) != os.Geteuid() || int(stat.Gid) != os.Getegid()) {
		err = f.Chown(int(stat.Uid), int(stat.Gid))
	}
	if err == nil {
		err = f.Chmod(c.info.Mode().Perm())
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(temp, c.path)
	}
	if err != nil {
		_ = os.Remove(temp)
	}
	return err
}
