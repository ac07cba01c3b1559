package request

import (
	"fmt"
	"path"
	"slices"
	"strings"

	oci "github.com/opencontainers/runtime-spec/specs-go"
)

// devicesDir is the directory in which mounts of /dev/null name devices.
const devicesDir = "/var/run/nvidia-container-devices/"

// mounted returns the names and IMEX channels that mounts request:
//
//	/var/run/nvidia-container-devices/<name>
//	/var/run/nvidia-container-devices/cdi/<vendor>/<class>/<name> (or <class>=<name>)
//	/var/run/nvidia-container-devices/imex/<channel>
//
// An image can have mounts (VOLUME), but none of /dev/null.
func mounted(mounts []oci.Mount) (names, channels []string, err error) {
	for _, m := range mounts {
		if path.Clean(m.Source) != "/dev/null" {
			continue
		}
		name, ok := strings.CutPrefix(path.Clean(m.Destination), devicesDir)
		if !ok {
			// If /var/run is a link, the runtime may have resolved it.
			if name, ok = strings.CutPrefix(path.Clean(m.Destination), strings.TrimPrefix(devicesDir, "/var")); !ok {
				continue
			}
		}
		switch kind, rest, _ := strings.Cut(name, "/"); {
		case kind == "imex" && rest != "":
			channels = append(channels, normalize(rest))
		case kind == "cdi" && rest != "":
			qualified, err := qualify(rest)
			if err != nil {
				return nil, nil, fmt.Errorf("mount %s: %w", quote(m.Destination), err)
			}
			names = append(names, normalize(qualified))
		default:
			names = append(names, normalize(name))
		}
	}
	return unique(names), unique(channels), nil
}

func qualify(rest string) (string, error) {
	if strings.Contains(rest, "=") {
		return rest, nil
	}
	parts := strings.Split(rest, "/")
	if len(parts) != 3 {
		return "", fmt.Errorf("%s is not <vendor>/<class>/<name>", quote(rest))
	}
	return parts[0] + "/" + parts[1] + "=" + parts[2], nil
}

// HookName is the program of the prestart hook that Docker adds to containers started with --gpus, in
// versions that do not use CDI for it.
const HookName = "nvidia-container-runtime-hook"

// dockerGPUs reports whether the container was started with docker run --gpus: it has the
// hook, which no image can add. Docker sets NVIDIA_VISIBLE_DEVICES after the image's variables, so with the
// hook its value is Docker's.
func dockerGPUs(spec *oci.Spec) bool {
	return spec.Hooks != nil && slices.ContainsFunc(spec.Hooks.Prestart, isDockerHook) //nolint:staticcheck // deprecated, and Docker adds its hook there
}

// isDockerHook reports whether a hook is Docker's for --gpus.
func isDockerHook(h oci.Hook) bool { return path.Base(h.Path) == HookName }
