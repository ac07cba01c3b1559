package driver

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/vm"
)

func TestSignatures(t *testing.T) {
	vm.SkipUnlessEnabled(t)
	k := vm.FetchKernel(t, vm.Linux61)
	stubs := vm.BuildStubs(t, k, version)
	files := vm.Merge(
		k.ModuleTree(t, []string{"ecc"}, nil),
		image("/driver", k.Release, k.Sign(t, stubs, vm.Snakeoil)),
		image("/unsigned", k.Release, stubs),
		image("/unknown", k.Release, k.Sign(t, stubs, vm.NewKey(t))),
	)
	t.Run("SecureBoot", func(t *testing.T) {
		t.Parallel()
		n := boot(t, vm.Config{Kernel: k, Files: files, SecureBoot: true})
		check := n.driver("check", withoutGPU("--image-root", "/unknown")...)
		t.Log(check)
		require.Contains(t, check.Stdout, "Secure Boot is on")
		require.Contains(t, check.Stdout, `doubt    /unknown/lib/modules/`)
		require.Contains(t, check.Stdout, `it is signed by "a key that nobody trusts", serial number 01`)
		require.Contains(t, check.Stdout, "mokutil --import CERT.der")
		check = n.driver("check", withoutGPU("--image-root", "/unsigned")...)
		require.Equal(t, 3, check.Code)
		require.Empty(t, n.driver("check", withoutGPU()...).Stderr)

		n.refuses("SignatureRejected", `it is signed by "a key that nobody trusts", serial number 01, and the kernel (Secure Boot is on) trusts no such key; enrol the signer's certificate (mokutil --import CERT.der`, "--image-root", "/unknown")
		r := n.load("--image-root", "/unsigned")
		require.Equal(t, 3, r.Code)
		require.Contains(t, r.Stderr, "the kernel loads signed modules alone (Secure Boot is on) and it is not signed")
		require.Empty(t, n.modules())
		n.loads()
		require.Len(t, n.modules(), 3)
		n.unloads()
	})
	t.Run("Enforced", func(t *testing.T) {
		t.Parallel()
		n := boot(t, vm.Config{Kernel: k, Files: files, Args: []string{"module.sig_enforce=1"}})
		n.refuses("SignatureRejected", "module.sig_enforce is on) and it is not signed", "--image-root", "/unsigned")
		n.refuses("SignatureRejected", "trusts no such key", "--image-root", "/unknown")
		require.Empty(t, n.modules())
	})
	t.Run("Lockdown", func(t *testing.T) {
		t.Parallel()
		n := boot(t, vm.Config{Kernel: k, Files: files, Args: []string{"lockdown=integrity"}})
		n.refuses("LockedDown", "the kernel is locked down (integrity)) and it is not signed", "--image-root", "/unsigned")
		require.Empty(t, n.modules())
	})
}
