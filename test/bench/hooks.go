package main

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/host/mount"
	"github.com/gpuready/gpuready/toolkit/hook/joined"
)

// A container whose image has many libraries, as a CUDA development image with Python has, and a
// driver's libraries and the GPUs of a large machine in it.
const (
	imageGPUs       = 8
	imageLibraries  = 5000
	driverLibraries = 30
	driverVersion   = "580.95.05"
)

// hooks measures the hooks of a container's creation together, run in one process as the
// specification names them. They run in the container's mount namespace, as a runtime runs them.
func (b *bench) hooks(ctx context.Context) error {
	if os.Geteuid() != 0 {
		fmt.Println("hooks: left out, it needs root")
		return nil
	}
	c, err := newImage(filepath.Join(b.tmp, "container"))
	if err != nil {
		return err
	}
	if err := c.addDriver(); err != nil {
		return err
	}
	return mount.InNamespace(func() error {
		if err := c.mount(); err != nil {
			return err
		}
		return b.timeHooks(ctx, c)
	})
}

func (b *bench) timeHooks(ctx context.Context, c *image) error {
	cached, err := c.times(ctx, b, c.runs(b.hookRuns, func() error { return c.writeFile("etc/ld.so.cache", c.cache) }))
	if err != nil {
		return err
	}
	show(fmt.Sprintf("all hooks of a container, %d libraries, with a cache", imageLibraries), cached, within(10*time.Millisecond, 0))
	scanned, err := c.times(ctx, b, c.runs(b.hookRuns/4+1, func() error { return os.RemoveAll(c.root + "/etc") }))
	if err != nil {
		return err
	}
	show("the same, of an image without a cache", scanned, goal{})
	var nothing []time.Duration
	for range b.hookRuns {
		took, err := c.hook(ctx, b, "noop")
		if err != nil {
			return err
		}
		nothing = append(nothing, took)
	}
	show("a hook that does nothing: what starting it takes", nothing, goal{})
	return nil
}

// image is a container's bundle; the parts that hooks change are restored for each run.
type image struct {
	bundle, root, folder, state string
	cache                       []byte
	mounts                      []oci.Mount // with a driver's libraries, if it has them
	links                       []string    // to the driver's libraries
}

// arguments returns the hooks in the toolkit's specification, in order.
func (c *image) arguments() []string {
	links := []string{"create-symlinks"}
	for _, l := range c.links {
		links = append(links, "--link", l)
	}
	return joined.Args(
		links,
		[]string{"enable-cuda-compat", "--host-driver-version=" + driverVersion},
		[]string{"update-ldcache", "--folder", c.folder},
		[]string{"disable-device-node-modification"},
		[]string{"update-application-profile"},
	)
}

type prepared struct {
	n       int
	prepare func() error
}

func (c *image) runs(n int, prepare func() error) prepared { return prepared{n, prepare} }

func (c *image) times(ctx context.Context, b *bench, p prepared) ([]time.Duration, error) {
	var all []time.Duration
	for range p.n {
		if err := p.prepare(); err != nil {
			return nil, err
		}
		for _, l := range c.links {
			_, link, _ := strings.Cut(l, "::")
			if err := os.RemoveAll(c.root + link); err != nil {
				return nil, err
			}
		}
		// The file of a real driver's parameters, on which a hook mounts its own.
		err := unix.Unmount(c.root+"/proc/driver/nvidia/params", unix.MNT_DETACH)
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return nil, fmt.Errorf("unmount the driver's parameters: %w", err)
		}
		if err := os.RemoveAll(c.root + "/etc/nvidia"); err != nil {
			return nil, err
		}
		took, err := c.hook(ctx, b, c.arguments()...)
		if err != nil {
			return nil, err
		}
		all = append(all, took)
	}
	return all, nil
}

func (c *image) hook(ctx context.Context, b *bench, args ...string) (time.Duration, error) {
	cmd := exec.CommandContext(ctx, b.program("gpu-cdi-hook"), args...)
	cmd.Stdin, cmd.Env = strings.NewReader(c.state), []string{"PATH=/usr/bin:/bin"}
	var said strings.Builder
	cmd.Stderr = &said
	start := time.Now()
	err := cmd.Run()
	took := time.Since(start)
	if err == nil && said.Len() > 0 {
		err = errors.New("it warned")
	}
	if err != nil {
		return 0, fmt.Errorf("gpu-cdi-hook %s: %w: %s", args[0], err, strings.TrimSpace(said.String()))
	}
	return took, nil
}

// newImage creates the image. Its libraries are copies of a single page, a library's first one,
// because hooks read no more.
func newImage(dir string) (*image, error) {
	triplet, loader := "x86_64-linux-gnu", "lib64/ld-linux-x86-64.so.2"
	if runtime.GOARCH == "arm64" {
		triplet, loader = "aarch64-linux-gnu", "lib/ld-linux-aarch64.so.1"
	}
	c := &image{bundle: dir, root: dir + "/rootfs", folder: "/usr/lib/" + triplet, state: fmt.Sprintf(`{"ociVersion":"1.0.2","id":"c","pid":1,"bundle":%q}`, dir)}
	if err := c.writeFile(loader, library("ld.so")); err != nil {
		return nil, err
	}
	var names []string
	for i := range imageLibraries {
		name := fmt.Sprintf("libimage%d.so.%d", i, i%7)
		names = append(names, name)
		if err := c.writeFile(c.folder+"/"+name, library(name)); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(names, func(a, b string) int { return byNumbers(b, a) })
	c.cache = cache(c.folder, names)
	c.mounts = []oci.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc"},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755"}},
	}
	return c, nil
}

// addDriver creates a driver's libraries beside the image, with a mount and a link for each, and
// writes the container's configuration.
func (c *image) addDriver() error {
	driver := c.bundle + "/driver"
	if err := os.Mkdir(driver, 0o755); err != nil {
		return err
	}
	for i := range driverLibraries {
		soname := fmt.Sprintf("libnvidia-part%d.so.1", i)
		file := fmt.Sprintf("libnvidia-part%d.so.%s", i, driverVersion)
		if err := os.WriteFile(filepath.Join(driver, file), library(soname), 0o755); err != nil {
			return err
		}
		c.mounts = append(c.mounts, oci.Mount{Destination: c.folder + "/" + file, Type: "bind", Source: filepath.Join(driver, file), Options: []string{"ro", "rbind"}})
		c.links = append(c.links, file+"::"+c.folder+"/"+soname)
	}
	config, err := json.Marshal(oci.Spec{Version: "1.0.2", Root: &oci.Root{Path: "rootfs"}, Mounts: c.mounts})
	if err != nil {
		return err
	}
	return os.WriteFile(c.bundle+"/config.json", config, 0o644)
}

// mount mounts as runc does before it runs hooks: the root on itself, and then the rest into it.
func (c *image) mount() error {
	if err := unix.Mount(c.root, c.root, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("mount the container's root: %w", err)
	}
	for _, m := range c.mounts {
		if err := c.mountOne(m); err != nil {
			return fmt.Errorf("mount %s in the container: %w", m.Destination, err)
		}
	}
	for i := range imageGPUs {
		if err := unix.Mknod(fmt.Sprintf("%s/dev/nvidia%d", c.root, i), unix.S_IFCHR|0o666, int(unix.Mkdev(195, uint32(i)))); err != nil {
			return fmt.Errorf("make the node of a GPU: %w", err)
		}
	}
	return nil
}

func (c *image) mountOne(m oci.Mount) error {
	target := filepath.Join(c.root, m.Destination)
	if m.Type != "bind" {
		return errors.Join(os.MkdirAll(target, 0o755), unix.Mount(m.Source, target, m.Type, unix.MS_NOSUID, ""))
	}
	return errors.Join(
		c.writeFile(m.Destination, nil),
		unix.Mount(m.Source, target, "", unix.MS_BIND|unix.MS_REC, ""),
		unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""),
	)
}

func (c *image) writeFile(name string, data []byte) error {
	file := filepath.Join(c.root, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, data, 0o755)
}

// library returns a minimal shared library with a soname for this machine: an ELF header, two
// program headers, the dynamic section and its strings.
func library(soname string) []byte {
	le := binary.LittleEndian
	machine := uint16(62) // EM_X86_64
	if runtime.GOARCH == "arm64" {
		machine = 183
	}
	const dynamic, text = 64 + 2*56, 64 + 2*56 + 3*16
	b := make([]byte, text, 4096)
	copy(b, "\x7fELF\x02\x01\x01")
	le.PutUint16(b[16:], 3) // ET_DYN
	le.PutUint16(b[18:], machine)
	le.PutUint64(b[32:], 64)
	le.PutUint16(b[54:], 56)
	le.PutUint16(b[56:], 2)
	header := func(at int, kind uint32, offset, size uint64) {
		le.PutUint32(b[at:], kind)
		le.PutUint64(b[at+8:], offset)
		le.PutUint64(b[at+16:], offset)
		le.PutUint64(b[at+32:], size)
	}
	header(64, 1, 0, 4096)            // PT_LOAD: all of it
	header(64+56, 2, dynamic, 3*16)   // PT_DYNAMIC
	le.PutUint64(b[dynamic:], 5)      // DT_STRTAB
	le.PutUint64(b[dynamic+8:], text) //
	le.PutUint64(b[dynamic+16:], 14)  // DT_SONAME
	le.PutUint64(b[dynamic+24:], 1)   // behind the empty string
	b = append(b, 0)                  // then DT_NULL is all zeros
	return append(append(b, soname...), make([]byte, 4096-len(b)-len(soname))...)
}

// byNumbers compares names in glibc's order, in which its loader searches: libimage<n>.so.<m> by n
// and m, as numbers.
func byNumbers(a, b string) int {
	parts := func(s string) (n, m int) {
		_, _ = fmt.Sscanf(s, "libimage%d.so.%d", &n, &m)
		return n, m
	}
	an, am := parts(a)
	bn, bm := parts(b)
	return cmp.Or(cmp.Compare(an, bn), cmp.Compare(am, bm))
}

// cache returns an ld.so.cache with the names in dir, in glibc's format.
func cache(dir string, names []string) []byte {
	le := binary.LittleEndian
	kind := uint32(0x303)
	if runtime.GOARCH == "arm64" {
		kind = 0xa03
	}
	b := make([]byte, 48+24*len(names))
	copy(b, "glibc-ld.so.cache1.1")
	le.PutUint32(b[20:], uint32(len(names)))
	b[28] = 2 // little endian
	for i, name := range names {
		e := b[48+24*i:]
		le.PutUint32(e, kind)
		le.PutUint32(e[4:], uint32(len(b)+len(dir)+1))
		le.PutUint32(e[8:], uint32(len(b)))
		b = append(b, dir+"/"+name+"\x00"...)
	}
	le.PutUint32(b[24:], uint32(len(b)-48-24*len(names)))
	return b
}
