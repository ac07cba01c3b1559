package node

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/gpuready/gpuready/test/lab/binaries"
)

// work is a node's folder for files of a test. It ends with the node.
const work = "/run/.node/work"

// TestImage is the name of the image of every runtime.
const TestImage = "docker.io/gpuready/test:1"

// Programs of the image.
const (
	Probe     = "/bin/probe"     // see probe
	Vectoradd = "/bin/vectoradd" // the sample
)

// probe prints what it finds for each argument: NAME= is a variable of its environment, /dev/… a
// device that it may open, any other path a file. wait makes it print that and wait for ever.
const probe = `
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int n, char **args) {
	for (int i = 1; i < n; i++) {
		char *what = args[i], *end = strchr(what, '=');
		if (!strcmp(what, "wait")) {
			puts("waiting");
			fflush(stdout);
			for (;;)
				pause();
		}
		if (end) {
			*end = 0;
			const char *value = getenv(what);
			printf("%s=%s\n", what, value ? value : "(none)");
			continue;
		}
		int fd = open(what, strncmp(what, "/dev/", 5) ? O_RDONLY : O_RDWR);
		int there = fd >= 0 || errno == EIO || errno == ENXIO || errno == ENODEV;
		printf("%s %s\n", what, there ? "there" : errno == EPERM ? "not permitted" : "missing");
	}
	puts("done");
	return 0;
}`

// testImage builds the archive of Image.
func testImage() (string, error) {
	libraries, loader, err := Glibc()
	if err != nil {
		return "", err
	}
	program := filepath.Join(work, "probe")
	cmd := exec.Command("gcc", "-static", "-O1", "-x", "c", "-", "-o", program) //nolint:noctx // a second
	cmd.Stdin = strings.NewReader(probe)
	cmd.Env = append(os.Environ(), "TMPDIR="+work)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("compile the probe: %w\n%s", err, out)
	}
	from := map[string]string{Probe: program, loader: loader}
	for _, lib := range libraries {
		from[filepath.Join(LibraryDir(), filepath.Base(lib))] = lib
	}
	if dir := os.Getenv("GPUREADY_BIN"); dir != "" {
		from[Vectoradd] = filepath.Join(dir, "vectoradd")
	}
	files := map[string][]byte{"/etc/os-release": []byte("ID=gpuready-test\n"), "/tmp/.keep": nil}
	var errs []error
	for at, path := range from {
		data, err := os.ReadFile(path)
		errs = append(errs, err)
		files[at] = data
	}
	if err := errors.Join(errs...); err != nil {
		return "", err
	}
	return writeArchive("test", binaries.Image{Name: TestImage, Files: files, Entrypoint: []string{Probe}})
}

// pauseImage builds the archive of binaries.PauseName.
func pauseImage() (string, error) {
	pause, err := binaries.PauseImage()
	if err != nil {
		return "", err
	}
	return writeArchive("pause", pause)
}

func writeArchive(name string, i binaries.Image) (string, error) {
	file := filepath.Join(work, name+".tar")
	return file, binaries.WriteImage(file, i)
}
