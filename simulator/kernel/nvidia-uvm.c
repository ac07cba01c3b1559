/* A stub of nvidia-uvm.ko: a character device with a major that the kernel chooses. */
#include "stub.h"

STUB("NVIDIA unified memory driver");

static int uvm_disable_hmm;
static int major;

module_param(uvm_disable_hmm, int, 0444);

static const struct file_operations stub_fops = {
	.owner = THIS_MODULE,
};

static int __init stub_init(void)
{
	pr_info("nvidia-uvm: loaded with nvidia %s, SIMULATED\n", nvidia_simulated_version());
	major = register_chrdev(0, "nvidia-uvm", &stub_fops);
	return major < 0 ? major : 0;
}
module_init(stub_init);

static void __exit stub_exit(void)
{
	unregister_chrdev(major, "nvidia-uvm");
}
module_exit(stub_exit);
