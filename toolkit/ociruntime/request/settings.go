package request

// This file defines the settings of gpu-oci-runtime: one JSON file next to the
// program, which gpu-toolkit or a person writes.

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// SettingsFile is the name of the file, in the directory of the program.
const SettingsFile = "gpu-oci-runtime.json"

const maxBytes = 64 << 10

// Settings are the settings. The accept-… ones have the names and meaning of those of
// NVIDIA's container runtime.
type Settings struct {
	// Runtimes are the low-level runtimes, of which the first existing one is used. Each
	// is an absolute path, or a name that is looked up in PATH and then in the directories
	// of distributions.
	Runtimes []string `json:"runtimes"`
	// AcceptEnvvar lets unprivileged containers choose GPUs by NVIDIA_VISIBLE_DEVICES.
	// An image can set that for itself.
	AcceptEnvvar bool `json:"accept-nvidia-visible-devices-envvar-when-unprivileged"`
	// AcceptNamed lets them do so if they name GPUs by index, UUID or CDI name, but not
	// with "all", which images set by themselves. It is for callers that know which
	// namespaces are allowed; gpu-oci-runtime does not.
	AcceptNamed bool `json:"-"`
	// AcceptPodAnnotations also treats the annotations of a container's pod as requests. It
	// is for callers that know which namespaces are allowed.
	AcceptPodAnnotations bool `json:"-"`
	// AcceptVolumeMounts treats mounts of /dev/null below /var/run/nvidia-container-devices
	// as names of GPUs.
	AcceptVolumeMounts bool `json:"accept-nvidia-visible-devices-as-volume-mounts"`
	// AnnotationPrefixes are the prefixes of annotations whose values are CDI names.
	AnnotationPrefixes []string `json:"annotation-prefixes"`
	// SpecDirs are the directories of CDI specifications, in rising order of precedence.
	SpecDirs []string `json:"spec-dirs"`
}

// DefaultSettings returns the default settings.
func DefaultSettings() Settings {
	return Settings{
		Runtimes:           []string{"runc", "crun", "youki"},
		AnnotationPrefixes: []string{"cdi.k8s.io/"},
		SpecDirs:           []string{"/etc/cdi", "/var/run/cdi"},
	}
}

// Encode returns the file's content.
func (s Settings) Encode() ([]byte, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return nil, err
	}
	return append(data, '\n'), nil
}

// decodeSettings parses the file's content. Missing keys have the default. With an error it
// returns DefaultSettings, but with the file's runtimes if these can still be read, because only
// the runtime that created a container can stop it.
func decodeSettings(data []byte) (Settings, error) {
	s := DefaultSettings()
	err := strict(data, &s)
	if err == nil {
		err = s.check()
	}
	if err == nil {
		return s, nil
	}
	salvaged := DefaultSettings()
	var only struct {
		Runtimes []string `json:"runtimes"`
	}
	_ = json.Unmarshal(data, &only) // despite an error it decodes what it can
	if (Settings{Runtimes: only.Runtimes}).checkRuntimes() == nil {
		salvaged.Runtimes = only.Runtimes
	}
	return salvaged, err
}

func strict(data []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return readable(err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is more data after the settings; remove it")
	}
	return nil
}

func readable(err error) error {
	switch {
	case errors.Is(err, io.EOF):
		return errors.New("it is empty; write {} for the defaults or remove it")
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("it ends too early; was it cut short?")
	}
	return errors.New(strings.TrimPrefix(err.Error(), "json: "))
}

func (s Settings) check() error {
	if err := s.checkRuntimes(); err != nil {
		return err
	}
	if slices.Contains(s.AnnotationPrefixes, "") {
		return errors.New(`annotation-prefixes: "" would be every annotation; remove it`)
	}
	for _, dir := range s.SpecDirs {
		if !path.IsAbs(dir) {
			return fmt.Errorf("spec-dirs: %q is not an absolute path", dir)
		}
	}
	if len(s.SpecDirs) == 0 {
		return errors.New("spec-dirs: none is named; leave the key out for /etc/cdi and /var/run/cdi")
	}
	return nil
}

func (s Settings) checkRuntimes() error {
	if len(s.Runtimes) == 0 {
		return errors.New("runtimes: none is named; leave the key out for runc, crun and youki")
	}
	for _, r := range s.Runtimes {
		if r == "" || strings.ContainsRune(r, '/') && !path.IsAbs(r) || strings.ContainsRune(r, 0) {
			return fmt.Errorf("runtimes: %q is neither a name nor an absolute path", r)
		}
	}
	return nil
}

// ReadSettings reads the file next to the program. It returns DefaultSettings if there is none. With an
// error it returns the same settings as decodeSettings.
func ReadSettings(program string) (Settings, error) {
	name := filepath.Join(filepath.Dir(program), SettingsFile)
	data, err := read(name)
	if errors.Is(err, fs.ErrNotExist) {
		return DefaultSettings(), nil
	}
	if err != nil {
		return DefaultSettings(), err
	}
	s, err := decodeSettings(data)
	if err != nil {
		return s, fmt.Errorf("settings %s: %w", name, err)
	}
	return s, nil
}

func read(name string) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe would block
	if err != nil {
		return nil, fmt.Errorf("settings: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("settings: %w", err)
	}
	if len(data) > maxBytes {
		return nil, fmt.Errorf("settings %s: more than %d bytes; is it the right file?", name, maxBytes)
	}
	return data, nil
}
