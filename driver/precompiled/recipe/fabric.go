package recipe

import (
	"context"
	"crypto/sha1" //nolint:gosec // fingerprints of keys are made with it
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpuready/gpuready/driver/build/folder"
	"github.com/gpuready/gpuready/driver/precompiled/runfile"
	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// Values of FABRIC: whether images have the programs without which GPUs behind NVSwitches do not compute. They are
// in NVIDIA's CUDA repository for each distribution, and not in its installers.
const (
	fabricAuto = "auto" // if they can be had; else a warning
	fabricOn   = "on"
	fabricOff  = "off"
)

// repositories holds the address of the CUDA repositories.
const repositories = "https://developer.download.nvidia.com/compute/cuda/repos"

// fingerprints holds the fingerprints of the keys that sign the CUDA repositories, by their file there.
var fingerprints = map[string]string{
	"3bf863cc.pub": "eb693b3035cd5710e231e123a4b469963bf863cc",
	"8793F200.pub": "02182e60104fcdc26eae1b8597a5d4cb8793f200",
	"D42D0685.pub": "610c7b14e068a878070da4e99cd0a493d42d0685",
}

// cudaRepository is the CUDA repository of a system.
type cudaRepository struct {
	name string
	key  string // file; "": FABRIC_KEY_FILE names it
}

var cudaRepositories = map[string]cudaRepository{
	"debian12":    {"debian12", "3bf863cc.pub"},
	"debian13":    {"debian13", "8793F200.pub"},
	"ubuntu22.04": {"ubuntu2204", "3bf863cc.pub"},
	"ubuntu24.04": {"ubuntu2404", "3bf863cc.pub"},
	"ubuntu26.04": {"ubuntu2604", ""},
	"rhel8":       {"rhel8", "D42D0685.pub"},
	"rhel9":       {"rhel9", "D42D0685.pub"},
	"rhel10":      {"rhel10", ""}, // CDF6BA43.pub
	"amzn2023":    {"amzn2023", "D42D0685.pub"},
	"azurelinux3": {"azl3", ""},
}

// fabricPackage is a package of programs or libraries for NVSwitches and IMEX.
type fabricPackage struct {
	name    string
	version string // the driver's; "": any
}

// listFabric lists the packages for a driver. The names had the driver's branch in them until 575; NVIDIA has no
// libnvsdm for ARM, and the others of 550 and of 570 only from there on.
func listFabric(f family, version, arch string) []fabricPackage {
	branch, _ := strconv.Atoi(strings.SplitN(version, ".", 2)[0])
	suffix := ""
	if branch < 580 {
		suffix = fmt.Sprintf("-%d", branch)
	}
	manager := "nvidia-fabricmanager" + suffix
	if f != apt && branch < 580 {
		manager = "nvidia-fabric-manager"
	}
	all := []fabricPackage{{manager, version}, {"libnvidia-nscq" + suffix, version}}
	if branch >= 550 {
		verbs := "libibumad"
		if f == apt {
			verbs = "libibumad3"
		}
		all = append(all, fabricPackage{"nvidia-imex" + suffix, version}, fabricPackage{"nvlsm", ""}, fabricPackage{verbs, ""})
	}
	if branch >= 570 && arch == "x86_64" {
		all = append(all, fabricPackage{"libnvsdm" + suffix, version})
	}
	return all
}

// pin returns the package as the package manager of a family takes it.
func (p fabricPackage) pin(f family) string {
	switch {
	case p.version == "":
		return p.name
	case f == apt:
		return p.name + "=" + p.version + "-1"
	}
	return p.name + "-" + p.version
}

// checkFabric compares files of packages with those that a driver needs. The error names each that is missing or of
// another version.
func checkFabric(want []fabricPackage, files []string) error {
	var all []error
	for _, p := range want {
		is := regexp.MustCompile(`^` + regexp.QuoteMeta(p.name) + `[_-](?:\d+:)?(\d[^-_]*)[-_].*\.(?:deb|rpm)$`)
		found := ""
		for _, file := range files {
			if m := is.FindStringSubmatch(file); m != nil && (found == "" || m[1] == p.version) {
				found = m[1]
			}
		}
		switch {
		case found == "":
			all = append(all, fmt.Errorf("there is no package %s", p.name))
		case p.version != "" && found != p.version:
			all = append(all, fmt.Errorf("the package %s is of %s, and the driver of %s: both have to be of one version", p.name, record.Clean(found, 50), p.version))
		}
	}
	return errors.Join(all...)
}

// The last stages of a build that fetches or takes packages, with the commands of a family. /context has the key
// that signs the repository, or the packages.
const fabricStages = `ARG BUILDER_IMAGE
FROM ${BUILDER_IMAGE} AS build
USER 0
COPY . /context
ARG FABRIC_REPOSITORY
ARG FABRIC_PACKAGES
RUN mkdir -p /packages /result/files && cd /packages && %s && ls > /result/packages
FROM scratch
COPY --from=build /result /
`

var fetchFabric = map[family]string{
	apt: `apt-get update && apt-get install -y --no-install-recommends ca-certificates && ` +
		`echo "deb [signed-by=/context/key.asc] ${FABRIC_REPOSITORY} /" > /etc/apt/sources.list.d/fabric.list && apt-get update && apt-get download ${FABRIC_PACKAGES}`,
	rhel: fetchRPMs, rpm: fetchRPMs, rhcos: fetchRPMs,
}

// fetchRPMs imports the key, and checks each package by it and the keys of the distribution.
const fetchRPMs = `printf '[fabric]\nname=fabric\nbaseurl=%%s\ngpgcheck=1\n' "${FABRIC_REPOSITORY}" > /etc/yum.repos.d/fabric.repo && rpm --import /context/key.asc && ` +
	`dnf -y install dnf-plugins-core cpio && dnf -y download --setopt=fabric.module_hotfixes=1 ${FABRIC_PACKAGES} && rpm --checksig *.rpm`

// unpackFabric unpacks the packages in the working folder.
var unpackFabric = map[family]string{
	apt:  `for p in *.deb; do dpkg -x "$p" /result/files || exit; done`,
	rhel: unpackFabricRPMs, rpm: unpackFabricRPMs, rhcos: unpackFabricRPMs, suse: unpackFabricRPMs,
}

const unpackFabricRPMs = `for p in *.rpm; do (cd /result/files && rpm2cpio "/packages/$p" | cpio -idm) || exit; done`

// findFabric returns a folder with the unpacked packages; "" if the images get none.
func (s *Settings) findFabric(ctx context.Context, work string) (string, error) {
	if s.Fabric == fabricOff {
		return "", nil
	}
	dir, err := s.fetchFabric(ctx, work)
	if err == nil {
		return dir, nil
	}
	err = fmt.Errorf("FABRIC: %w", err)
	if s.Fabric == fabricOn || ctx.Err() != nil {
		return "", err
	}
	s.Log.Warn("the image gets no fabric manager: on machines with NVSwitches (HGX, DGX) CUDA will not start; set FABRIC=on for images of these, or FABRIC=off", "reason", record.Clean(err.Error(), 1000))
	return "", nil
}

func (s *Settings) fetchFabric(ctx context.Context, work string) (string, error) {
	o := systems[s.OS]
	want := listFabric(o.family, s.DriverVersion, s.TargetArch)
	dir := filepath.Join(work, "fabric-context")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	command := fetchFabric[o.family]
	args := map[string]string{}
	var names []string
	for _, p := range want {
		names = append(names, p.pin(o.family))
	}
	switch repository, known := cudaRepositories[s.OS]; {
	case s.FabricPackages != "":
		files, err := s.copyPackages(dir)
		if err == nil {
			err = checkFabric(want, files)
		}
		if err != nil {
			return "", fmt.Errorf("%s: %w", s.FabricPackages, err)
		}
		if _, err := exec.LookPath("dpkg"); err == nil && !slices.ContainsFunc(files, func(f string) bool { return strings.HasSuffix(f, ".rpm") }) {
			return s.unpackDebsHere(ctx, dir, files, work)
		}
		command = "cp /context/* ."
	case command == "" || !known && s.FabricRepository == "":
		return "", fmt.Errorf("there is no CUDA repository for %s: set FABRIC_PACKAGES_DIR to a folder with %s", s.OS, strings.Join(names, ", "))
	default:
		address := s.FabricRepository
		if address == "" {
			address = repositories + "/" + repository.name + "/" + map[string]string{"x86_64": "x86_64", "aarch64": "sbsa"}[s.TargetArch]
		}
		if err := s.writeKey(ctx, address, repository.key, filepath.Join(dir, "key.asc")); err != nil {
			return "", err
		}
		args["FABRIC_REPOSITORY"], args["FABRIC_PACKAGES"] = address, strings.Join(names, " ")
	}
	to := filepath.Join(work, "fabric")
	if s.ContainerTool == NoTool {
		return "", errors.New("packages are fetched in a container, and CONTAINER_TOOL is none")
	}
	args["BUILDER_IMAGE"], _ = s.builderImage(0)
	text := fmt.Sprintf(fabricStages, command+" && "+unpackFabric[o.family])
	if err := s.buildImage(ctx, text, dir, to, runfile.AnyLinks, args); err != nil {
		return "", err
	}
	list, err := record.Read(filepath.Join(to, "packages"), 64<<10)
	if err != nil {
		return "", err
	}
	if err := checkFabric(want, strings.Fields(string(list))); err != nil {
		return "", err
	}
	return filepath.Join(to, "files"), nil
}

// unpackDebsHere unpacks packages on this machine, into a new folder.
func (s *Settings) unpackDebsHere(ctx context.Context, dir string, files []string, work string) (string, error) {
	to := filepath.Join(work, "fabric-files")
	if err := os.Mkdir(to, 0o755); err != nil {
		return "", err
	}
	for _, file := range files {
		if err := s.runProgram(ctx, nil, "dpkg", "-x", filepath.Join(dir, file), to); err != nil {
			return "", err
		}
	}
	return to, nil
}

// copyPackages copies the packages of FABRIC_PACKAGES_DIR, and returns their names.
func (s *Settings) copyPackages(to string) ([]string, error) {
	var names []string
	for _, pattern := range []string{"*.deb", "*.rpm"} {
		files, err := filepath.Glob(filepath.Join(s.FabricPackages, pattern))
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			names = append(names, filepath.Base(file))
			if err := folder.CopyFile(file, filepath.Join(to, filepath.Base(file))); err != nil {
				return nil, err
			}
		}
	}
	slices.Sort(names)
	return names, nil
}

// maxKey bounds a file with a key.
const maxKey = 64 << 10

// writeKey writes the key that signs a repository: FABRIC_KEY_FILE, or that of the repository, if it is NVIDIA's.
func (s *Settings) writeKey(ctx context.Context, address, name, to string) error {
	if s.FabricKey != "" {
		key, err := record.Read(s.FabricKey, maxKey)
		if err != nil {
			return fmt.Errorf("FABRIC_KEY_FILE: %w", err)
		}
		return os.WriteFile(to, key, 0o644)
	}
	if name == "" {
		return fmt.Errorf("set FABRIC_KEY_FILE to the key that signs %s", address)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, address+"/"+name, nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(q)
	if err != nil {
		return err
	}
	defer answer.Body.Close() //nolint:errcheck // it is only read
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s/%s: %s", address, name, record.Clean(answer.Status, 100))
	}
	key, err := io.ReadAll(io.LimitReader(answer.Body, maxKey))
	if err != nil {
		return err
	}
	if err := checkKey(key, fingerprints[name]); err != nil {
		return fmt.Errorf("%s/%s: %w", address, name, err)
	}
	return os.WriteFile(to, key, 0o644)
}

// checkKey rejects a file that has another key than the one with a fingerprint, or others besides.
func checkKey(armored []byte, fingerprint string) error {
	keys, err := listKeys(armored)
	if err != nil {
		return fmt.Errorf("it is no key: %w", err)
	}
	if len(keys) != 1 {
		return fmt.Errorf("it has %d keys, and NVIDIA's file has one", len(keys))
	}
	if keys[0] != fingerprint {
		return fmt.Errorf("its key has the fingerprint %s, and NVIDIA's has %s", keys[0], fingerprint)
	}
	return nil
}

var errDamaged = errors.New("it is damaged")

// listKeys returns the fingerprints of the primary keys in an armored file (RFC 4880, 4.2, 6.2 and 12.2).
func listKeys(armored []byte) (all []string, err error) {
	_, text, found := strings.Cut(string(armored), "-----BEGIN PGP PUBLIC KEY BLOCK-----")
	text, rest, ends := strings.Cut(text, "-----END PGP PUBLIC KEY BLOCK-----")
	if !found || !ends || strings.Contains(rest, "-----BEGIN") {
		return nil, errors.New("it is not one block of PGP")
	}
	_, body, _ := strings.Cut(strings.ReplaceAll(text, "\r", ""), "\n\n")
	body, _, _ = strings.Cut(body, "\n=") // a checksum
	data, err := base64.StdEncoding.DecodeString(strings.ReplaceAll(body, "\n", ""))
	if err != nil {
		return nil, err
	}
	for len(data) > 0 {
		tag, content, left, err := nextPacket(data)
		if err != nil {
			return nil, err
		}
		data = left
		const publicKey = 6
		if tag != publicKey {
			continue
		}
		if len(content) == 0 || content[0] != 4 || len(content) > 0xffff {
			return nil, errors.New("it is not of version 4")
		}
		sum := sha1.Sum(append([]byte{0x99, byte(len(content) >> 8), byte(len(content))}, content...)) //nolint:gosec // which makes fingerprints of version 4
		all = append(all, hex.EncodeToString(sum[:]))
	}
	return all, nil
}

// nextPacket splits the first packet off. Files of keys have none of unknown length.
func nextPacket(data []byte) (tag byte, content, left []byte, err error) {
	if len(data) < 2 || data[0]&0x80 == 0 {
		return 0, nil, nil, errDamaged
	}
	tag = data[0] >> 2 & 0x0f
	size, digits := 0, 1<<(data[0]&3) // of the old format: bytes of the length
	at := 1
	if data[0]&0x40 != 0 {
		tag = data[0] & 0x3f
		switch first := int(data[1]); {
		case first < 192:
			digits = 1
		case first < 224 && len(data) > 2:
			size, at, digits = (first-192)<<8+int(data[2])+192, 3, 0
		case first == 255:
			at, digits = 2, 4
		default:
			return 0, nil, nil, errDamaged
		}
	}
	if digits == 8 || len(data) < at+digits {
		return 0, nil, nil, errDamaged
	}
	for range digits {
		size, at = size<<8|int(data[at]), at+1
	}
	if size < 0 || size > len(data)-at {
		return 0, nil, nil, errDamaged
	}
	return tag, data[at : at+size], data[at+size:], nil
}
