package vm

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestArguments(t *testing.T) {
	k := &Kernel{Release: "6.1.0-1", root: "/cache"}
	p := paths{initrd: "/t/initrd", console: "/t,x/console", variables: "/t/variables.fd", disk: "/t/disk"}
	plain := strings.Join(arguments(Config{Kernel: k, Args: []string{"lockdown=integrity"}, Devices: []string{"edu"}}, p), " ")
	require.Contains(t, plain, "-accel tcg -m 512 -smp 1 ")
	require.Contains(t, plain, "path=/t,,x/console ")
	require.Contains(t, plain, "-kernel /cache/boot/vmlinuz-6.1.0-1 -initrd /t/initrd -append console=ttyS0 panic=-1 lockdown=integrity ")
	require.Contains(t, plain, "-device edu")
	require.Contains(t, plain, "-cpu max,-cx16")
	require.NotContains(t, plain, "pflash")
	require.NotContains(t, plain, "-drive")
	require.NotContains(t, plain, "-netdev")

	node := strings.Join(arguments(Config{Kernel: k, CPUs: 2, Disk: 100, Network: os.Stdin, Args: []string{"quiet"}}, p), " ")
	require.Contains(t, node, "-smp 2 ")
	require.Contains(t, node, "-append console=ttyS0 panic=-1 MACHINE_ROOT=/dev/vda quiet ")
	require.Contains(t, node, "cache=unsafe,file=/t/disk")
	require.Contains(t, node, "-netdev tap,id=network,fd=3 ")

	secure := strings.Join(arguments(Config{Kernel: k, Memory: 1024, SecureBoot: true}, p), " ")
	require.Contains(t, secure, "-m 1024 ")
	require.Contains(t, secure, "smm=on")
	require.Contains(t, secure, "unit=0,readonly=on,file="+firmwareCode)
	require.Contains(t, secure, "unit=1,file=/t/variables.fd")
}

func TestDependenciesOfModules(t *testing.T) {
	require.Equal(t, map[string][]string{
		"kernel/crypto/ecc.ko":              {},
		"kernel/crypto/ecdsa_generic.ko.xz": {"kernel/crypto/ecc.ko"},
	}, parseDependencies("kernel/crypto/ecc.ko:\nkernel/crypto/ecdsa_generic.ko.xz: kernel/crypto/ecc.ko\n"+
		"# Aliases extracted from modules themselves.\nalias pci:v000010DEd*sv* nvidia\n"))
	for at, name := range map[string]string{
		"kernel/drivers/nvidia-uvm.ko.xz": "nvidia_uvm", "ecc.ko": "ecc", "nvidia_drm": "nvidia_drm",
	} {
		require.Equal(t, name, moduleName(at))
	}
}
