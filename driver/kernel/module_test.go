package kernel

import (
	"bytes"
	"compress/gzip"
	"crypto/x509/pkix"
	"debug/elf"
	"encoding/asn1"
	"encoding/binary"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
	"github.com/ulikunitz/xz"

	"github.com/gpuready/gpuready/internal/host"
)

// build returns an ELF file with the sections of a kernel module: .modinfo, and a build ID
// unless that is "".
func build(modinfo, buildID string) []byte {
	note := []byte{}
	if buildID != "" {
		note = binary.LittleEndian.AppendUint32(note, 4)
		note = binary.LittleEndian.AppendUint32(note, uint32(len(buildID)))
		note = binary.LittleEndian.AppendUint32(note, 3)
		note = append(note, "GNU\x00"+buildID...)
	}
	names := "\x00.modinfo\x00.note.gnu.build-id\x00.shstrtab\x00"
	const header, entry = 64, 64
	body := append([]byte(modinfo), note...)
	body = append(body, names...)
	b := []byte("\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00")
	number := func(width int, n uint64) {
		for range width {
			b = append(b, byte(n))
			n >>= 8
		}
	}
	for _, f := range [][2]uint64{
		{2, 1}, {2, 62}, {4, 1}, {8, 0}, {8, 0}, {8, header + uint64(len(body))}, {4, 0}, {2, header}, {2, 0}, {2, 0}, {2, entry}, {2, 4}, {2, 3},
	} {
		number(int(f[0]), f[1])
	}
	b = append(b, body...)
	section := func(name, kind, at, size int) {
		for _, f := range [][2]uint64{{4, uint64(name)}, {4, uint64(kind)}, {8, 0}, {8, 0}, {8, uint64(at)}, {8, uint64(size)}, {4, 0}, {4, 0}, {8, 1}, {8, 0}} {
			number(int(f[0]), f[1])
		}
	}
	section(0, 0, 0, 0)
	section(1, 1, header, len(modinfo))
	section(10, 7, header+len(modinfo), len(note))
	section(29, 3, header+len(modinfo)+len(note), len(names))
	return b
}

// info returns the content of a section .modinfo.
func info(lines ...string) string { return strings.Join(lines, "\x00") + "\x00" }

// sign appends a signature to a module; its message is not one that verifies.
func sign(t *testing.T, module []byte, message []byte) []byte {
	t.Helper()
	b := append(bytes.Clone(module), message...)
	b = append(b, 0, 0, signaturePKCS7, 0, 0, 0, 0, 0)
	b = binary.BigEndian.AppendUint32(b, uint32(len(message)))
	return append(b, signatureMagic...)
}

// message returns a PKCS #7 message with a signer identified by issuer and serial number,
// or by a key ID.
func message(t *testing.T, issuer pkix.Name, serial int64, keyID []byte) []byte {
	t.Helper()
	marshal := func(v any) []byte {
		data, err := asn1.Marshal(v)
		require.NoError(t, err)
		return data
	}
	raw := func(class, tag int, compound bool, data []byte) asn1.RawValue {
		return asn1.RawValue{Class: class, Tag: tag, IsCompound: compound, Bytes: data}
	}
	id := marshal(struct {
		Issuer pkix.RDNSequence
		Serial *big.Int
	}{issuer.ToRDNSequence(), big.NewInt(serial)})
	if keyID != nil {
		id = marshal(raw(asn1.ClassContextSpecific, 0, false, keyID))
	}
	signer := marshal(raw(0, asn1.TagSequence, true, append(marshal(1), id...)))
	data := marshal(1)
	data = append(data, marshal(raw(0, asn1.TagSet, true, nil))...)
	data = append(data, marshal(raw(0, asn1.TagSequence, true, marshal(asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 7, 1})))...)
	data = append(data, marshal(raw(0, asn1.TagSet, true, signer))...)
	return marshal(struct {
		Type    asn1.ObjectIdentifier
		Content asn1.RawValue
	}{asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 7, 2}, raw(asn1.ClassContextSpecific, 0, true, marshal(raw(0, asn1.TagSequence, true, data)))})
}

var sample = info("name=nvidia_uvm", "version=580.95.05", "srcversion=0123", "license=Dual MIT/GPL", "description=a module, SIMULATED",
	"vermagic=6.1.0-56-cloud-amd64 SMP preempt mod_unload modversions ", "depends=nvidia,i2c-core", "softdep=pre: video post: later",
	"firmware=nvidia/580.95.05/gsp_ga10x.bin", "parm=uvm_debug:how much is said (int)", "parmtype=uvm_debug:int", "parm=uvm_plain:no type is told")

func TestReadInfo(t *testing.T) {
	data := build(sample, "\xab\xcd")
	i, err := ReadInfo(bytes.NewReader(data), int64(len(data)))
	require.NoError(t, err)
	require.Equal(t, Info{
		Name: "nvidia_uvm", Version: "580.95.05", SrcVersion: "0123", License: "Dual MIT/GPL", Description: "a module, SIMULATED",
		Vermagic: "6.1.0-56-cloud-amd64 SMP preempt mod_unload modversions ", BuildID: "abcd",
		Depends: []string{"nvidia", "i2c_core"}, SoftBefore: []string{"video"}, Firmware: []string{"nvidia/580.95.05/gsp_ga10x.bin"},
		Params: map[string]string{"uvm_debug": "int", "uvm_plain": ""}, Machine: elf.EM_X86_64,
	}, i)
	require.Equal(t, "6.1.0-56-cloud-amd64", i.Release())
	require.Equal(t, OpenKind, i.Kind())
	require.True(t, i.Simulated())
}

func TestSignerHasTheKernelsKeyName(t *testing.T) {
	for _, c := range []struct {
		issuer pkix.Name
		keyID  []byte
		want   string
	}{
		{pkix.Name{CommonName: "Debian Secure Boot CA"}, nil, `"Debian Secure Boot CA", serial number 0102`},
		{pkix.Name{CommonName: "key for modules", Organization: []string{"Example"}}, nil, `"Example: key for modules", serial number 0102`},
		{pkix.Name{CommonName: "Example Ltd signing", Organization: []string{"Example"}}, nil, `"Example Ltd signing", serial number 0102`},
		{pkix.Name{Organization: []string{"Example"}}, nil, `"Example", serial number 0102`},
		{pkix.Name{}, []byte{0xbe, 0xef}, "key beef"},
	} {
		data := sign(t, build(sample, ""), message(t, c.issuer, 0x102, c.keyID))
		i, err := ReadInfo(bytes.NewReader(data), int64(len(data)))
		require.NoError(t, err)
		require.Equal(t, c.want, i.Signature.String())
	}
	require.Equal(t, "nobody", (*Signature)(nil).String())
	data := sign(t, build(sample, ""), []byte("no message"))
	_, err := ReadInfo(bytes.NewReader(data), int64(len(data)))
	require.ErrorIs(t, err, errSignature)
}

func TestInvalidModulesAreRejected(t *testing.T) {
	whole := build(sample, "\xab\xcd")
	for name, data := range map[string][]byte{
		"empty": {}, "text": []byte("#!/bin/sh\n"), "without vermagic": build(info("name=x"), ""), "cut": whole[:len(whole)/2],
	} {
		_, err := ReadInfo(bytes.NewReader(data), int64(len(data)))
		require.ErrorIs(t, err, ErrNoModule, name)
	}
}

func FuzzReadInfo(f *testing.F) {
	f.Add(build(sample, "\xab\xcd"))
	f.Add(append(build(sample, ""), "\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x00\x04"+signatureMagic...))
	f.Fuzz(func(_ *testing.T, data []byte) { _, _ = ReadInfo(bytes.NewReader(data), int64(len(data))) })
}

func FuzzParsePKCS7(f *testing.F) {
	f.Add([]byte{0x30, 0x03, 0x02, 0x01, 0x01})
	f.Fuzz(func(_ *testing.T, data []byte) { _, _ = parsePKCS7(data) })
}

// writeFile writes a file below a folder.
func writeFile(t *testing.T, dir, name string, data []byte) {
	t.Helper()
	path := filepath.Join(dir, name)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, data, 0o644))
}

// open opens a folder as a root.
func open(t *testing.T, dir string) *host.Root {
	t.Helper()
	root, err := host.Open(dir)
	require.NoError(t, err)
	t.Cleanup(func() { _ = root.Close() })
	return root
}

// compress returns data in the compression of a file extension.
func compress(t *testing.T, extension string, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	var w interface {
		Write([]byte) (int, error)
		Close() error
	}
	var err error
	switch extension {
	case ".gz":
		w = gzip.NewWriter(&b)
	case ".xz":
		w, err = xz.NewWriter(&b)
	case ".zst":
		w, err = zstd.NewWriter(&b)
	}
	require.NoError(t, err)
	_, err = w.Write(data)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return b.Bytes()
}

func TestDriversAreFoundByFolderCompressedOrNot(t *testing.T) {
	dir := t.TempDir()
	module := func(name, license string) []byte {
		return build(info("name="+name, "vermagic=6.1 SMP", "license="+license), "")
	}
	writeFile(t, dir, "a/nvidia.ko", module("nvidia", "NVIDIA"))
	// Also of the proprietary driver, this one is free.
	writeFile(t, dir, "a/nvidia-uvm.ko.xz", compress(t, ".xz", module("nvidia_uvm", "Dual MIT/GPL")))
	writeFile(t, dir, "b/deep/nvidia.ko.zst", compress(t, ".zst", module("nvidia", "Dual MIT/GPL")))
	writeFile(t, dir, "b/deep/nvidia-drm.ko.gz", compress(t, ".gz", module("nvidia_drm", "Dual MIT/GPL")))
	writeFile(t, dir, "c/nvidia.ko", module("nvidia", "NVIDIA"))
	writeFile(t, dir, "d/other.ko", module("other", "GPL"))
	writeFile(t, dir, "README", []byte("no module"))
	drivers, err := FindDrivers(open(t, dir), "/")
	require.NoError(t, err)
	require.Len(t, drivers, 2)
	require.Len(t, drivers[Proprietary], 2)
	require.Equal(t, filepath.Join(dir, "a/nvidia.ko"), drivers[Proprietary]["nvidia"].String(), "of two the one whose path sorts first")
	require.Len(t, drivers[OpenKind], 2)
	require.Contains(t, drivers[OpenKind], "nvidia_drm")

	writeFile(t, dir, "e/nvidia-peermem.ko.xz", []byte("cut off"))
	_, err = FindDrivers(open(t, dir), "/")
	require.ErrorIs(t, err, ErrNoModule)
	require.ErrorContains(t, err, "nvidia-peermem.ko.xz")
	none, err := FindDrivers(open(t, dir), "/lib/modules/none")
	require.NoError(t, err)
	require.Empty(t, none)
}
