/*
 * A stand-in for nouveau, the driver that the kernels of most distributions load for NVIDIA's GPUs: it takes the GPUs on the
 * PCI bus, and shows a device drm/card0 of each, as nouveau does. SIMULATED.
 */
#include <linux/device.h>
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/version.h>

MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("SIMULATED nouveau; it drives nothing");

static struct class *drm;
static int major;

static const struct file_operations card_fops = {
	.owner = THIS_MODULE,
};

static int probe(struct pci_dev *pci, const struct pci_device_id *id)
{
	struct device *card = device_create(drm, &pci->dev, MKDEV(major, 0), NULL, "card0");

	if (IS_ERR(card))
		return PTR_ERR(card);
	pci_info(pci, "nouveau: taken, SIMULATED\n");
	return 0;
}

static void remove(struct pci_dev *pci)
{
	device_destroy(drm, MKDEV(major, 0));
	pci_info(pci, "nouveau: let go, SIMULATED\n");
}

static const struct pci_device_id ids[] = {
	{ PCI_DEVICE(PCI_VENDOR_ID_NVIDIA, PCI_ANY_ID) },
	{ },
};

static struct pci_driver driver = { .name = "nouveau", .id_table = ids, .probe = probe, .remove = remove };

static int __init stub_init(void)
{
	int err;

	major = register_chrdev(0, "drm", &card_fops);
	if (major < 0)
		return major;
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 4, 0)
	drm = class_create(THIS_MODULE, "drm");
#else
	drm = class_create("drm");
#endif
	err = PTR_ERR_OR_ZERO(drm);
	if (err)
		goto unregister;
	err = pci_register_driver(&driver);
	if (!err)
		return 0;
	class_destroy(drm);
unregister:
	unregister_chrdev(major, "drm");
	return err;
}
module_init(stub_init);

static void __exit stub_exit(void)
{
	pci_unregister_driver(&driver);
	class_destroy(drm);
	unregister_chrdev(major, "drm");
}
module_exit(stub_exit);
