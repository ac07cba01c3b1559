package spec

import (
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// firmwareParameter is the file with the directory in which the kernel searches for firmware
// first. Installers that cannot write to /lib set it.
const firmwareParameter = "/sys/module/firmware_class/parameters/path"

// firmware adds the firmware of the GPU's processors, from the directories that the kernel
// searches (Documentation/driver-api/firmware/fw_search_path.rst).
func (f *finder) firmware() {
	dirs := []string{"/lib/firmware/updates", "/lib/firmware"}
	var uts unix.Utsname
	if f.failed(unix.Uname(&uts)) {
		return
	}
	release := unix.ByteSliceToString(uts.Release[:])
	for _, dir := range dirs {
		dirs = append(dirs, path.Join(dir, release))
	}
	if dir := f.firmwarePath(); dir != "" {
		// A driver's container sets the path on the host, which begins with the driver root. In
		// other containers the firmware is where kernels search by default.
		if below, ok := strings.CutPrefix(dir, f.at+"/"); ok {
			f.addFirmware("/"+below, "/lib/firmware")
		} else {
			f.addFirmware(dir, dir)
		}
	}
	for _, dir := range dirs {
		f.addFirmware(dir, dir)
	}
}

// addFirmware adds the firmware of the driver's version in a directory that the kernel searches.
func (f *finder) addFirmware(dir, container string) {
	sub := path.Join("nvidia", f.version)
	for _, pattern := range []string{"gsp*.bin", "ucodes*.bin"} {
		for _, p := range f.match(path.Join(dir, sub), pattern) {
			f.mount(p, path.Join(container, sub, path.Base(p)), readOnly)
		}
	}
}

// firmwarePath returns the directory on the host in which the kernel searches first, "" if there
// is none. A simulated driver has its own /sys below its root.
func (f *finder) firmwarePath() string {
	for _, at := range []string{f.at, "/"} {
		data, err := f.machine.ReadFile(path.Join(at, firmwareParameter), unix.PathMax)
		if f.failed(err) {
			continue
		}
		dir := path.Clean(strings.TrimSpace(string(data)))
		if !path.IsAbs(dir) {
			return ""
		}
		return dir
	}
	return ""
}
