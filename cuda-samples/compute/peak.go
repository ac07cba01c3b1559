package main

import "strings"

// capability is a compute capability as a number: 90 for "9.0".
type capability int

// fp32Lanes holds the fp32 multiply-adds of a multiprocessor per clock: CUDA C++
// Programming Guide, "Arithmetic instructions", row "32-bit floating-point add, multiply,
// multiply-add".
var fp32Lanes = map[capability]int{
	50: 128, 52: 128, 53: 128, 60: 64, 61: 128, 62: 128, 70: 64, 72: 64, 75: 64,
	80: 64, 86: 128, 87: 128, 89: 128, 90: 128, 100: 128, 103: 128, 120: 128, 121: 128,
}

// bf16Lanes holds the dense bf16 multiply-adds with fp32 sums that the tensor cores of a
// multiprocessor do per clock. From NVIDIA's data sheets, dense figure ÷ (2 ×
// multiprocessors × boost clock): A100 312 TFLOP/s (108 × 1.41 GHz), A10 125 (72 ×
// 1.70), L40S 362 (142 × 2.52), H100 SXM 989 (132 × 1.83), B200 2250 (148 × 1.85),
// RTX PRO 6000 Blackwell 504 (188 × 2.62). A compute capability that is not listed gets no bf16 peak.
var bf16Lanes = map[capability]int{80: 1024, 86: 512, 89: 512, 90: 2048, 100: 4096, 120: 512}

// halved holds the capabilities whose GeForce GPUs do half of bf16Lanes when they sum in fp32
// (RTX 3090: 71 TFLOP/s, RTX 4090: 165, RTX 5090: 210).
var halved = map[capability]bool{86: true, 89: true, 120: true}

// peaks returns the theoretical maximum of a GPU in FLOP/s, 0 where unknown: multiprocessors × clock × lanes × 2, since a
// multiply-add is two operations.
func peaks(name string, cc capability, multiprocessors, clockHz float64) (fp32, bf16 float64) {
	tensor := bf16Lanes[cc]
	if halved[cc] && strings.Contains(name, "GeForce") {
		tensor /= 2
	}
	rate := 2 * multiprocessors * clockHz
	return rate * float64(fp32Lanes[cc]), rate * float64(tensor)
}
