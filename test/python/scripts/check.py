"""Compares results with numpy's and prints what ran."""
import numpy as np


def equal(what, got, want, rtol=0.0, atol=0.0):
    np.testing.assert_allclose(got, want, rtol=rtol, atol=atol, err_msg=what)
    print("ok", what)


def raises(what, text, call):
    try:
        call()
    except Exception as e:
        assert text in str(e), f"{what}: it says {e!r}, not {text!r}"
        print("ok", what, "-", str(e).splitlines()[0][:100])
        return e
    raise AssertionError(f"{what}: nothing was raised")
