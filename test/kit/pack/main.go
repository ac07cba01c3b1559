// Program pack makes a kit: one file that brings a cluster up on a bare machine. The file begins with package starter.
package main

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"github.com/gpuready/gpuready/test/kit/packed"
	"github.com/gpuready/gpuready/test/lab/binaries"
)

// limit is the size in bytes that a kit may have.
const limit = 55_000_000

// combined lists the programs that test/kit/programs is in one.
var combined = []string{"kubelet", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "etcd", "containerd", "ctr"}

// separate lists the other programs of a node.
var separate = []string{"containerd-shim-runc-v2", "runc", "bridge", "host-local", "loopback"}

// images lists the images that the manifests name.
var images = []string{"device-plugin", "toolkit", "validator", "cuda-samples", "dra-driver"}

var manifests = []string{"gpuready.yaml", "dra-driver.yaml", "mps.yaml", "uninstall.yaml", "examples/vectoradd.yaml", "examples/claim.yaml"}

type options struct{ kit, starter, programs, count, images, manifests, out string }

func main() {
	var o options
	flags := pflag.NewFlagSet("pack", pflag.ExitOnError)
	flags.StringVar(&o.kit, "kit", "bin/kit/kit", "the kit's own program")
	flags.StringVar(&o.starter, "starter", "bin/kit/starter", "the program that unpacks it")
	flags.StringVar(&o.programs, "programs", "bin/kit/programs", "Kubernetes, etcd and containerd in one program")
	flags.StringVar(&o.count, "count", "bin/kit", "folder of count.so and calls.h")
	flags.StringVar(&o.images, "images", "bin/images", "folder of the images")
	flags.StringVar(&o.manifests, "manifests", "deployments/static", "folder of the manifests")
	flags.StringVar(&o.out, "out", "bin/gpu-kit", "the file to make")
	_ = flags.Parse(os.Args[1:]) // it exits
	if err := pack(context.Background(), o); err != nil {
		fmt.Fprintln(os.Stderr, "pack:", err)
		os.Exit(1)
	}
}

func pack(ctx context.Context, o options) error {
	node, err := binaries.EnsureNode(ctx, binaries.Options{Out: os.Stderr})
	if err != nil {
		return err
	}
	var plain bytes.Buffer
	if err := o.write(&plain, node.Path); err != nil {
		return err
	}
	archive, err := compress(ctx, plain.Bytes())
	if err != nil {
		return err
	}
	size, err := o.join(archive)
	if err != nil {
		return err
	}
	fmt.Printf("%s: %.1f MB\n", o.out, float64(size)/1e6)
	if size > limit {
		return fmt.Errorf("it has %d bytes; %d are allowed", size, limit)
	}
	return nil
}

// compress compresses data with xz: two streams at a time, of a half each.
func compress(ctx context.Context, data []byte) ([]byte, error) {
	halves := [][]byte{data[:len(data)/2], data[len(data)/2:]}
	streams := make([][]byte, len(halves))
	group, ctx := errgroup.WithContext(ctx)
	for i, half := range halves {
		group.Go(func() error {
			dictionary := fmt.Sprintf("--lzma2=preset=9e,dict=%dMiB", len(half)>>20+1)
			cmd := exec.CommandContext(ctx, "xz", "--format=xz", "--check=crc32", "--threads=1", dictionary)
			cmd.Stdin, cmd.Stderr = bytes.NewReader(half), os.Stderr
			var err error
			streams[i], err = cmd.Output()
			return err
		})
	}
	err := group.Wait()
	return slices.Concat(streams...), err
}

// write writes the tar archive.
func (o options) write(w io.Writer, path func(program string) string) error {
	archive := tar.NewWriter(w)
	add := func(name, from string, mode int64) error {
		content, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		packed.Encode(content)
		if err := archive.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(content))}); err != nil {
			return err
		}
		_, err = archive.Write(content)
		return err
	}
	first := "bin/" + combined[0]
	errs := []error{add("gpu-kit", o.kit, 0o755), add(first, o.programs, 0o755)}
	for _, name := range combined[1:] {
		errs = append(errs, archive.WriteHeader(&tar.Header{Typeflag: tar.TypeLink, Name: "bin/" + name, Linkname: first}))
	}
	for _, name := range separate {
		errs = append(errs, add("bin/"+name, path(name), 0o755))
	}
	for _, name := range []string{"count.so", "calls.h"} {
		errs = append(errs, add("count/"+name, filepath.Join(o.count, name), 0o644))
	}
	for _, name := range images {
		errs = append(errs, add("images/"+name+".tar", filepath.Join(o.images, name+".tar"), 0o644))
	}
	for _, name := range manifests {
		errs = append(errs, add("manifests/"+filepath.Base(name), filepath.Join(o.manifests, name), 0o644))
	}
	return errors.Join(append(errs, archive.Close())...)
}

// join writes the starter, the compressed archive and its size to one file.
func (o options) join(archive []byte) (size int, err error) {
	starter, err := os.ReadFile(o.starter)
	if err != nil {
		return 0, err
	}
	end := append(binary.LittleEndian.AppendUint64(nil, uint64(len(archive))), packed.Magic...)
	all := slices.Concat(starter, archive, end)
	next := o.out + ".next" // one that runs stays as it is
	if err := os.WriteFile(next, all, 0o755); err != nil {
		return 0, err
	}
	return len(all), os.Rename(next, o.out)
}
