package kernel

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/host"
)

const release = "6.1.0-56-cloud-amd64"

// driver returns the modules of a driver's image.
func driver(root *host.Root) Files {
	files := Files{}
	for name, depends := range map[string][]string{
		"nvidia": {"i2c_core", "drm"}, "nvidia_uvm": {"nvidia"}, "nvidia_modeset": {"nvidia"}, "nvidia_drm": {"drm_kms_helper", "nvidia_modeset", "drm"}, "nvidia_peermem": {"nvidia", "ib_core"},
	} {
		files[name] = Module{Info{Name: name, Version: "580.1", Vermagic: release + " SMP", Depends: depends, Params: map[string]string{"NVreg_RegistryDwords": "charp", "NVreg_EnableMSI": "int"}}, root, "/" + name + ".ko"}
	}
	return files
}

// tree writes the lists of a kernel's own modules.
func tree(t *testing.T, depends, builtin string) *Tree {
	t.Helper()
	dir := t.TempDir()
	writeFile(t, dir, "lib/modules/"+release+"/modules.dep", []byte(depends))
	writeFile(t, dir, "lib/modules/"+release+"/modules.builtin", []byte(builtin))
	tr, err := ReadTree(open(t, dir), "/lib/modules/"+release)
	require.NoError(t, err)
	return tr
}

const usual = `kernel/drivers/gpu/drm/drm.ko: kernel/drivers/gpu/drm/drm_panel_orientation_quirks.ko
kernel/drivers/gpu/drm/drm_panel_orientation_quirks.ko:
kernel/drivers/gpu/drm/drm_kms_helper.ko: kernel/drivers/gpu/drm/drm.ko kernel/drivers/gpu/drm/drm_panel_orientation_quirks.ko
kernel/drivers/char/ipmi/ipmi_msghandler.ko.xz:
kernel/drivers/char/ipmi/ipmi_devintf.ko.xz: kernel/drivers/char/ipmi/ipmi_msghandler.ko.xz
`

func names(steps []Step) string {
	var all []string
	for _, s := range steps {
		all = append(all, s.Module.Name)
	}
	return strings.Join(all, " ")
}

func reasonOf(t *testing.T, err error) gpu.Reason {
	t.Helper()
	e, is := errors.AsType[*Error](err)
	require.True(t, is, "%v", err)
	require.LessOrEqual(t, len(e.Message), maxMessage)
	return e.Reason
}

func TestModulesAreLoadedAfterTheirDependencies(t *testing.T) {
	in := Inputs{
		Wanted: []string{"nvidia", "nvidia-uvm", "nvidia_modeset", "nvidia_drm"}, Optional: []string{"ipmi_msghandler", "ipmi_devintf", "video"},
		Tree: tree(t, usual, "kernel/drivers/i2c/i2c-core.ko\n"), Release: release, Options: newOptions(),
	}
	in.Files = driver(in.Tree.Root)
	steps, err := PlanSteps(in)
	require.NoError(t, err)
	require.Equal(t, "ipmi_msghandler ipmi_devintf drm_panel_orientation_quirks drm nvidia nvidia_uvm nvidia_modeset drm_kms_helper nvidia_drm", names(steps))
	optional := func(steps []Step) (all []string) {
		for _, s := range steps {
			if s.Optional {
				all = append(all, s.Module.Name)
			}
		}
		return all
	}
	require.Equal(t, []string{"ipmi_msghandler", "ipmi_devintf"}, optional(steps))
	in.Optional = append(in.Optional, "drm_kms_helper") // a dependency of nvidia_drm, with its own dependencies
	steps, err = PlanSteps(in)
	require.NoError(t, err)
	require.Equal(t, []string{"ipmi_msghandler", "ipmi_devintf"}, optional(steps))

	in.Optional = in.Optional[:3]
	in.Loaded = map[string]Loaded{"drm": {}, "nvidia": {}, "ipmi_devintf": {}, "ipmi_msghandler": {}}
	steps, err = PlanSteps(in)
	require.NoError(t, err)
	require.Equal(t, "nvidia_uvm nvidia_modeset drm_panel_orientation_quirks drm_kms_helper nvidia_drm", names(steps))
	require.True(t, steps[0].Ours)

	in.Wanted = []string{"nvidia_peermem"}
	_, err = PlanSteps(in)
	require.Equal(t, ReasonDependencyMissing, reasonOf(t, err))
	require.ErrorContains(t, err, "module nvidia_peermem needs ib_core, which neither the driver's image nor ")

	in.Wanted, in.Release = []string{"nvidia_uvm"}, "6.12.117-amd64"
	_, err = PlanSteps(in)
	require.Equal(t, ReasonKernelMismatch, reasonOf(t, err))
	require.ErrorContains(t, err, "is built for kernel "+release+", this node runs 6.12.117-amd64")

	in.Wanted = []string{"nvidia_vgpu_vfio"}
	_, err = PlanSteps(in)
	require.EqualError(t, err, "the driver's image has no module nvidia_vgpu_vfio for kernel 6.12.117-amd64")
}

func TestACircleOfModulesIsRefused(t *testing.T) {
	tr := tree(t, "", "")
	files := Files{}
	for name, need := range map[string]string{"a": "b", "b": "c", "c": "a"} {
		files[name] = Module{Info{Name: name, Vermagic: release, Depends: []string{need}}, tr.Root, "/" + name + ".ko"}
	}
	_, err := PlanSteps(Inputs{Wanted: []string{"a"}, Files: files, Tree: tr, Options: newOptions(), Release: release})
	require.EqualError(t, err, "the modules a, b, c, a depend on each other in a circle")
}

func TestParametersAreCheckedAndApplyInOrder(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, dir, "etc/modprobe.d/nvidia.conf", []byte("# a comment\noptions nvidia \\\n  NVreg_EnableMSI=1\nsoftdep nvidia pre: i2c-core\ninstall nvidia-uvm /sbin/modprobe --ignore-install\nblacklist nouveau\n"))
	writeFile(t, dir, "usr/lib/modprobe.d/nvidia.conf", []byte("options nvidia NVreg_EnableMSI=7\n"))
	writeFile(t, dir, "drivers/nvidia.conf", []byte("NVreg_EnableMSI=0 # off\nNVreg_RegistryDwords=\"a=1; b=2\"\n"))
	root := open(t, dir)
	o, err := ReadModprobe(root, "/etc/modprobe.d", "/usr/lib/modprobe.d")
	require.NoError(t, err)
	require.NoError(t, o.ReadConf(root, "/drivers"))
	var words []string
	for _, p := range o.Params["nvidia"] {
		words = append(words, p.String())
	}
	require.Equal(t, []string{"NVreg_EnableMSI=1", "NVreg_EnableMSI=0", `NVreg_RegistryDwords="a=1; b=2"`}, words)
	require.Equal(t, []string{"i2c_core"}, o.Before["nvidia"])
	require.Len(t, o.Ignored, 1)
	require.NoError(t, CheckParams(driver(root)["nvidia"].Info, o.Params["nvidia"]))
	require.NoError(t, CheckConf(o, driver(root)))

	for text, want := range map[string]string{
		"NVreg_EnableMSII=1":          `drivers/nvidia.conf:1: module nvidia 580.1 has no parameter "NVreg_EnableMSII", did you mean "NVreg_EnableMSI"?`,
		"\nNVreg_EnableMSI=yes":       `nvidia.conf:2: parameter NVreg_EnableMSI of module nvidia is a number of type int, not "yes"`,
		"NVreg_EnableMSI":             "is a number of type int",
		"NVreg_EnableMSI=0b1":         "is a number of type int",
		"NVreg_RegistryDwords":        "is a text: write NVreg_RegistryDwords=TEXT",
		`NVreg_RegistryDwords="a=1`:   "a double quote is not closed",
		"NVreg EnableMSI =1":          `"" is not the name of a parameter`,
		"NVreg_EnableMSI=\x01":        "the line holds the character",
		"options nvidia NVreg_X=1":    `without the words of modprobe.d: remove "options nvidia"`,
		"NVreg_EnableMSI=99999999999": "is a number of type int",
	} {
		writeFile(t, dir, "drivers/nvidia.conf", []byte(text))
		o := newOptions()
		err := o.ReadConf(root, "/drivers")
		if err == nil {
			err = CheckParams(driver(root)["nvidia"].Info, o.Params["nvidia"])
		}
		require.Equal(t, ReasonParameterUnknown, reasonOf(t, err), text)
		require.ErrorContains(t, err, want)
	}
	require.NoError(t, os.Rename(filepath.Join(dir, "drivers/nvidia.conf"), filepath.Join(dir, "drivers/nvidia-umv.conf")))
	writeFile(t, dir, "drivers/nvidia-umv.conf", []byte("x=1"))
	o = newOptions()
	require.NoError(t, o.ReadConf(root, "/drivers"))
	require.ErrorContains(t, CheckConf(o, driver(root)), `drivers/nvidia-umv.conf: the driver has no module nvidia_umv, did you mean "nvidia_uvm"?`)
	require.NoError(t, os.Rename(filepath.Join(dir, "drivers/nvidia-umv.conf"), filepath.Join(dir, "drivers/gridd.conf")))
	o = newOptions()
	require.NoError(t, o.ReadConf(root, "/drivers"))
	require.NoError(t, CheckConf(o, driver(root)), "a file of the vGPU driver's daemon")
}

func FuzzParseParams(f *testing.F) {
	f.Add(`NVreg_A="a b" NVreg_B=1 # c`)
	f.Fuzz(func(t *testing.T, line string) {
		params, err := parseParams(line, "x:1")
		if err != nil {
			return
		}
		for _, p := range params {
			again, err := parseParams(p.String(), "x:1")
			if err == nil && !strings.Contains(p.Value, "#") {
				require.Equal(t, []Param{p}, again)
			}
		}
	})
}

func FuzzAddModprobe(f *testing.F) {
	f.Add("options nvidia a=1 \\\n b=2\nsoftdep x pre: y\n")
	f.Fuzz(func(_ *testing.T, text string) {
		o := newOptions()
		_ = o.addModprobe("x", text)
	})
}

func FuzzReadDepends(f *testing.F) {
	f.Add(usual)
	f.Fuzz(func(_ *testing.T, text string) {
		t := &Tree{paths: map[string]string{}, depends: map[string][]string{}, builtin: map[string]bool{}}
		_ = t.readDepends(strings.NewReader(text))
		_ = t.readBuiltin(strings.NewReader(text))
	})
}

func TestTruncatedListIsReported(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, dir, "modules.dep", []byte("kernel/a.ko: kernel/b.ko\nkernel/c"))
	_, err := ReadTree(open(t, dir), "/")
	require.ErrorContains(t, err, `modules.dep: "kernel/c" is not a line of modules.dep; run depmod to recreate it`)
}

// proc creates a /proc and a /sys with files.
func proc(t *testing.T, files map[string]string) System {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		writeFile(t, dir, name, []byte(text))
	}
	return System{Proc: filepath.Join(dir, "proc"), Sys: filepath.Join(dir, "sys"), Calls: Running{}}
}

func TestLoadedModuleIsRecognisedByItsBuild(t *testing.T) {
	note := "\x04\x00\x00\x00\x02\x00\x00\x00\x03\x00\x00\x00GNU\x00\xab\xcd\x00\x00"
	s := proc(t, map[string]string{
		"proc/modules":                               "nvidia_uvm 1671168 0 - Live 0x0000000000000000 (OE)\nnvidia 56717312 3 nvidia_uvm,nvidia_modeset, Live 0x0 (POE)\nold 1 - [permanent], Unloading 0x0\n",
		"sys/module/nvidia/version":                  "580.1\n",
		"sys/module/nvidia/srcversion":               "77\n",
		"sys/module/nvidia/notes/.note.gnu.build-id": note,
	})
	loaded, err := s.ReadLoaded()
	require.NoError(t, err)
	require.Equal(t, Loaded{Name: "nvidia", References: 3, Holders: []string{"nvidia_uvm", "nvidia_modeset"}, State: "Live"}, loaded["nvidia"])
	require.Equal(t, Loaded{Name: "old", State: "Unloading"}, loaded["old"])
	l := s.Describe(loaded["nvidia"])
	image := Info{Name: "nvidia", Version: "580.1", SrcVersion: "77", BuildID: "abcd"}
	require.True(t, l.IsSameBuild(image))
	for _, other := range []Info{{Name: "nvidia", Version: "580.2", SrcVersion: "77", BuildID: "abcd"}, {Name: "nvidia", Version: "580.1", SrcVersion: "77"}, {Name: "nvidia"}} {
		require.False(t, l.IsSameBuild(other))
	}
	require.False(t, s.Describe(loaded["nvidia_uvm"]).IsSameBuild(Info{Name: "nvidia_uvm"}), "without a mark of its build it may be any")
}

func FuzzParseLoaded(f *testing.F) {
	f.Add("nvidia 56717312 3 nvidia_uvm,nvidia_modeset, Live 0x0 (POE)")
	f.Fuzz(func(_ *testing.T, line string) { _, _ = parseLoaded(line) })
}

const keys = `00f1b4d4 I------     1 perm 1f030000     0     0 asymmetri Debian Secure Boot CA: 6ccece7e4c6c0d1f6149f3dd27dfcc5cbb419ea1: X509.rsa bb419ea1 []
1a2b3c4d I--Q---     4 perm 1f3f0000     0 65534 keyring   _uid.0: empty
2b3c4d5e I------     1 perm 1f010000     0     0 asymmetri Example: key for modules: beef: X509.rsa beef []
`

func TestTrustIsCheckedBeforeLoading(t *testing.T) {
	files := map[string]string{"proc/keys": keys, "sys/kernel/security/lockdown": "none [integrity] confidentiality\n", "sys/module/module/parameters/sig_enforce": "Y\n", "sys/" + secureBoot: "\x06\x00\x00\x00\x01"}
	s := proc(t, files)
	trust := s.ReadTrust()
	require.Equal(t, Trust{Enforced: true, Lockdown: "integrity", SecureBoot: true, Keys: []Key{
		{"Debian Secure Boot CA", "6ccece7e4c6c0d1f6149f3dd27dfcc5cbb419ea1"}, {"Example: key for modules", "beef"},
	}}, trust)
	m := Module{Info{Name: "nvidia"}, open(t, t.TempDir()), "/nvidia.ko"}
	err := trust.Check(m)
	require.Equal(t, ReasonSignatureRejected, reasonOf(t, err))
	require.ErrorContains(t, err, `the kernel loads signed modules alone (Secure Boot is on) and it is not signed; sign it with a key that the kernel trusts; it trusts "Debian Secure Boot CA", "Example: key for modules"`)
	m.Signature = &Signature{Signer: "Example: key for modules", Serial: "01"}
	require.NoError(t, trust.Check(m))
	require.Empty(t, trust.MayRejectReason(m))
	m.Signature = &Signature{Signer: "somebody", Serial: "01"}
	require.NoError(t, trust.Check(m), "the kernel judges")
	require.Contains(t, trust.MayRejectReason(m), `it is signed by "somebody", serial number 01, and the kernel (Secure Boot is on) trusts no such key; enrol the signer's certificate (mokutil --import CERT.der`)
	m.Signature = nil
	files["sys/module/module/parameters/sig_enforce"] = "N\n"
	require.Equal(t, ReasonLockedDown, reasonOf(t, proc(t, files).ReadTrust().Check(m)))
	require.NoError(t, proc(t, nil).ReadTrust().Check(m))
}

func FuzzParseKeys(f *testing.F) {
	f.Add([]byte(keys))
	f.Fuzz(func(_ *testing.T, data []byte) { parseKeys(data) })
}

func TestErrorNumbersOfTheKernelBecomeReasons(t *testing.T) {
	s := proc(t, map[string]string{"sys/kernel/security/lockdown": "[none] integrity"})
	m := Module{Info{Name: "nvidia", Version: "580.1", Vermagic: release}, open(t, t.TempDir()), "/nvidia.ko"}
	for _, c := range []struct {
		err   error
		lines []string
		want  gpu.Reason
		text  string
	}{
		{unix.ENOEXEC, nil, ReasonKernelMismatch, "is built for kernel " + release},
		{unix.EINVAL, []string{"nvidia: disagrees about version of symbol module_layout"}, ReasonKernelMismatch, "the kernel says: nvidia: disagrees"},
		{unix.EINVAL, nil, ReasonDeviceInitFailed, "invalid argument"},
		{unix.EKEYREJECTED, nil, ReasonSignatureRejected, "it is not signed"},
		{unix.EPERM, nil, ReasonLockedDown, "CAP_SYS_MODULE"},
		{unix.ENOENT, []string{"nvidia: Unknown symbol ipmi_create_user (err -2)"}, ReasonDependencyMissing, "Unknown symbol ipmi_create_user"},
		{unix.ENODEV, []string{"NVRM: No NVIDIA GPU found."}, ReasonNoDevice, "NVRM: No NVIDIA GPU found."},
		{unix.EIO, nil, ReasonDeviceInitFailed, "its initialisation failed: input/output error"},
	} {
		err := s.explainLoad(m, c.err, c.lines)
		require.Equal(t, c.want, reasonOf(t, err), "%v", c.err)
		require.ErrorContains(t, err, c.text)
		require.ErrorIs(t, err, c.err)
	}
}

func TestTheKindFollowsTheGPUs(t *testing.T) {
	gpus := func(ids ...uint16) (all []host.PCIGPU) {
		for _, id := range ids {
			all = append(all, host.PCIGPU{Address: "0000:3b:00.0", Device: id})
		}
		return all
	}
	both := []Kind{OpenKind, Proprietary}
	for _, c := range []struct {
		wanted Kind
		have   []Kind
		gpus   []host.PCIGPU
		kind   Kind
		why    string // or a part of the error
	}{
		{Auto, both, gpus(0x2330, 0x2330), OpenKind, "for Hopper"},
		{Auto, both, gpus(0x1db4), Proprietary, "for Volta"},            // V100
		{Auto, both, gpus(0x1eb8), OpenKind, "for Turing"},              // T4
		{Auto, both, gpus(0x2182), OpenKind, "for Turing"},              // GTX 1660 Ti
		{Auto, both, gpus(0x20b0, 0x26b9), OpenKind, "for Ada, Ampere"}, // A100, L40S
		{Auto, both, gpus(0x2901), OpenKind, "for Blackwell or later"},  // B200
		{Auto, both, nil, OpenKind, "there is no GPU to decide by"},
		{Auto, both, gpus(0x1db4, 0x2901), "", "no one kind of kernel modules supports all GPUs of this node (Blackwell or later, Volta)"},
		{Auto, both, gpus(0x1db4, 0x2330), Proprietary, "for Hopper, Volta"},
		{Auto, []Kind{OpenKind}, gpus(0x1b38), "", "0000:3b:00.0 (10de:1b38, Pascal) is not supported by the open kernel modules; set kernelModuleType: proprietary"},
		{Proprietary, both, gpus(0x2342), "", "Grace Hopper) is not supported by the proprietary kernel modules; set kernelModuleType: open"},
		{Proprietary, both, gpus(0x2330), Proprietary, "as kernelModuleType says"},
		{OpenKind, both, gpus(0x0ffe), "", "this driver supports Maxwell and later alone"},
		{Proprietary, []Kind{OpenKind}, nil, "", "the driver's image has open alone"},
		{Auto, nil, nil, "", "no kernel modules"},
	} {
		kind, why, err := ChooseKind(c.wanted, c.have, c.gpus, "580.95.05")
		if c.kind == "" {
			require.ErrorContains(t, err, c.why)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, c.kind, kind)
		require.Equal(t, c.why, why)
	}
	_, err := ParseKind("closed")
	require.EqualError(t, err, `kernel module type "closed": want auto, open or proprietary`)
}

// The open modules of branch 535 refuse GeForce and workstation GPUs.
func TestTheKindOfAnOldDriver(t *testing.T) {
	ada, hopper, grace := host.PCIGPU{Device: 0x2684}, host.PCIGPU{Device: 0x2330}, host.PCIGPU{Device: 0x2342} // RTX 4090, H100, GH200
	both := []Kind{OpenKind, Proprietary}
	for _, c := range []struct {
		version string
		wanted  Kind
		have    []Kind
		gpu     host.PCIGPU
		kind    Kind
		why     string
	}{
		{"535.309.01", Auto, both, ada, Proprietary, "for Ada; the open modules of driver 535.309.01 are for data centers"},
		{"535.309.01", Auto, both, hopper, Proprietary, "for Hopper; the open modules of driver 535.309.01 are for data centers"},
		{"535.309.01", Auto, both, grace, OpenKind, "for Grace Hopper"},
		{"535.309.01", OpenKind, both, ada, OpenKind, "as kernelModuleType says"},
		{"535.309.01", Auto, []Kind{OpenKind}, ada, OpenKind, "the image has no other"},
		{"550.54.15", Auto, both, ada, OpenKind, "for Ada"},
		{"", Auto, both, ada, OpenKind, "for Ada"},
	} {
		kind, why, err := ChooseKind(c.wanted, c.have, []host.PCIGPU{c.gpu}, c.version)
		require.NoError(t, err)
		require.Equal(t, c.kind, kind, c)
		require.Equal(t, c.why, why)
	}
}

func TestARefusalByOpenModulesNamesTheKind(t *testing.T) {
	lines := []string{"NVRM: Open nvidia.ko is only ready for use on Data Center GPUs.", "NVRM: To force use of Open nvidia.ko on other GPUs, see the"}
	err := explainInit("0000:01:00.0", unix.EIO, lines, "; the kernel says: …")
	require.Equal(t, ReasonNoDevice, reasonOf(t, err))
	require.ErrorContains(t, err, "GPU 0000:01:00.0: the open modules of a driver before 550 support GPUs for data centers alone: set kernelModuleType: proprietary")
	require.ErrorIs(t, err, unix.EIO)
	err = explainInit("0000:01:00.0", unix.EIO, []string{"NVRM: GPU 0000:01:00.0: RmInitAdapter failed!"}, "")
	require.Equal(t, ReasonDeviceInitFailed, reasonOf(t, err))
}

func TestAProcessIsNamedWithItsPod(t *testing.T) {
	id, uid := strings.Repeat("ab", 32), "5ab1a1ab-89c0-4ba5-9a3b-4e5f0cd0be35"
	for text, want := range map[string][2]string{
		"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + strings.ReplaceAll(uid, "-", "_") + ".slice/cri-containerd-" + id + ".scope\n": {id, uid},
		"12:pids:/kubepods/besteffort/pod" + uid + "/" + id + "\n0::/\n":                                                                                      {id, uid},
		"0::/system.slice/docker-" + id + ".scope\n":                                                                                                          {id, ""},
		"0::/user.slice/podman\n": {"", ""},
		"":                        {"", ""},
	} {
		container, pod := parseCgroup(text)
		require.Equal(t, want, [2]string{container, pod}, text)
	}
	u := User{PID: 7, Command: "python3", Container: id, Pod: uid, Device: "/dev/nvidia0"}
	require.Equal(t, "pid 7 (python3, container abababababab, pod "+uid+") with /dev/nvidia0", u.String())
	require.Equal(t, u.String()+", "+u.String()+", "+u.String()+" and 1 more", describeUsers([]User{u, u, u, u}))
}
