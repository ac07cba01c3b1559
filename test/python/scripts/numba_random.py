"""Random numbers, local arrays and printing."""
import numpy as np
from numba import cuda, float32
from numba.cuda.random import create_xoroshiro128p_states, xoroshiro128p_normal_float32, xoroshiro128p_uniform_float32

import check


@cuda.jit
def pi(states, rounds, out):
    i = cuda.grid(1)
    inside = 0
    for _ in range(rounds):
        x = xoroshiro128p_uniform_float32(states, i)
        y = xoroshiro128p_uniform_float32(states, i)
        inside += x * x + y * y <= 1
    out[i] = 4 * inside / rounds


states, out = create_xoroshiro128p_states(512, seed=1), np.zeros(512, np.float32)
pi[4, 128](states, 200, out)
check.equal("pi by throwing darts", out.mean(), np.pi, atol=0.02)


@cuda.jit
def median(states, out):
    i = cuda.grid(1)
    own = cuda.local.array(15, float32)
    for k in range(15):
        v = xoroshiro128p_normal_float32(states, i)
        j = k
        while j > 0 and own[j - 1] > v:
            own[j] = own[j - 1]
            j -= 1
        own[j] = v
    out[i] = own[7]


median[4, 128](states, out)
check.equal("medians of sorted local arrays", out.mean(), 0, atol=0.1)


@cuda.jit
def say(x):
    print("thread", cuda.grid(1), "has", x[cuda.grid(1)])


say[1, 2](np.array([1.5, 2.5]))
cuda.synchronize()
