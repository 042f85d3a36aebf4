"""Test short names and categories of kernels, as profilers name them."""

import pytest

from systems.profiling.kernel_names import CATEGORIES, kernel_category, short_name

# Kernel names of PyTorch and its libraries, shortened where they repeat.
COPY = (
    "void at::native::elementwise_kernel<(int)128, (int)2, void at::native::gpu_kernel_"
    "impl_nocast<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase &)::"
    "[lambda() (instance 3)]::operator ()() const>(at::TensorIteratorBase &)>(int, T3)"
)
MUL = (
    "void at::native::vectorized_elementwise_kernel<(int)4, at::native::BinaryFunctor<"
    "float, float, float, at::native::binary_internal::MulFunctor<float>>>(int, T2)"
)
EXP = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::exp_kernel_"
    "cuda(at::TensorIteratorBase&)::{lambda()#2}, std::array<char*, 2ul> >(int)"
)
MAX = (
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::"
    "MaxOps<float>, unsigned int, float, 4, 4> >(at::native::ReduceOp<float>)"
)
WHERE = (
    "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<"
    "at::native::(anonymous namespace)::where_kernel_impl(at::TensorIterator&)> >(int)"
)
CUTLASS = "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nt_align1>(Params)"
XMMA = (
    "sm90_xmma_gemm_bf16f32_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1"
    "_execute_segment_k_off_kernel__5x_cublas"
)
SPLIT_K = (
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8_stage3_warpsize1x4x1_ffma_"
    "aligna4_alignc4_execute_{}__5x_cublas"
)
SPLIT_K_SHORT = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8"
MANGLED_ADD = (
    "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_"
    "addIfEESt5arrayIPcLm3EEEEviT0_T1_"
)
REDUCED = "void cublasLt::splitKreduce_kernel<32, 16, int, float>(cublasLt::Params)"
LOG = (
    "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, at::native::"
    "(anonymous namespace)::LogSoftMaxForwardEpilogue>(float*, float const*, int)"
)
FLASH = "void pytorch_flash::flash_fwd_kernel<Traits<64, 128, false>>(Flash_params)"
EFFICIENT = "fmha_cutlassF_f32_aligned_64x64_rf_sm80(AttentionKernel<cutlass::Sm80>)"
INDEX = "void at::native::index_elementwise_kernel<128, gpu_index_kernel<int>()>(int)"
CAT = (
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::"
    "OpaqueType<4u>, unsigned int, 4, 64>()"
)
FUSED_ADAM = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::"
    "(anonymous namespace)::FusedOptimizerTensorListMetadata<4>, at::native::"
    "FusedAdamMathFunctor<float, 4>>()"
)
BF16 = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::bfloat16_copy_"
    "kernel_cuda(at::TensorIteratorBase&)::{lambda(float)#1}>(int)"
)

KNOWN = {
    COPY: ("elementwise copy", "copy"),
    MUL: ("elementwise mul", "elementwise"),
    EXP: ("elementwise exp", "elementwise"),
    MAX: ("reduce max", "reduction"),
    WHERE: ("elementwise where", "elementwise"),
    BF16: ("elementwise copy to bf16", "copy"),
    INDEX: ("index", "copy"),
    CAT: ("CatArrayBatchedCopy", "copy"),
    CUTLASS: ("cutlass_80_simt_sgemm_128x32_8x5_nt_align1", "matmul"),
    XMMA: ("sm90_xmma_gemm_bf16f32_bf16f32_f32_tn_n_tilesize128x128x64", "matmul"),
    SPLIT_K.format("kernel"): (SPLIT_K_SHORT, "matmul"),
    SPLIT_K.format("split_k_kernel"): (f"{SPLIT_K_SHORT} split-K sum", "matmul"),
    MANGLED_ADD: ("elementwise add", "elementwise"),
    REDUCED: ("splitKreduce_kernel", "matmul"),
    LOG: ("cunn_SoftMaxForward", "softmax"),
    FLASH: ("flash_fwd_kernel", "attention"),
    EFFICIENT: ("fmha_cutlassF_f32_aligned_64x64_rf_sm80", "attention"),
    FUSED_ADAM: ("multi-tensor fused adam math", "optimizer"),
    "ampere_sgemm_128x64_tn": ("ampere_sgemm_128x64_tn", "matmul"),
    "ampere_sgemm_128x32_sliced1x4_nn": ("ampere_sgemm_128x32_sliced1x4_nn", "matmul"),
    # This kernel splits K and adds the partial results itself.
    "nvjet_sm90_tst_96x128_64x6_2x1_v_bz_splitK_NNN": (
        "nvjet_sm90_tst_96x128_64x6_2x1_v_bz_splitK_NNN",
        "matmul",
    ),
    "Memcpy DtoD (Device -> Device)": ("Memcpy DtoD", "copy"),
    "Memset (Device)": ("Memset", "copy"),
    "dkdv_kernel": ("dkdv_kernel", "attention"),
    # TorchInductor names a kernel after all operations that it fuses.
    "triton_poi_fused_scatter_0": ("triton_poi_fused_scatter_0", "elementwise"),
    "triton_per_fused_max_scatter_0": ("triton_per_fused_max_scatter_0", "reduction"),
    "triton_red_fused_exp_scatter_1": ("triton_red_fused_exp_scatter_1", "reduction"),
    "nobody_knows_this": ("nobody_knows_this", "other"),
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_kernels_have_short_names_and_categories(name):
    short = short_name(name)
    assert (short, kernel_category(name)) == KNOWN[name] and short_name(short) == short


def test_phase_decides_the_category_of_unfused_kernels():
    assert kernel_category(EXP, ("forward", "attention softmax")) == "softmax"
    assert kernel_category(MUL, ("optimizer",)) == "optimizer"
    for path in (("forward",), ("forward", "attention mask")):
        assert kernel_category(EXP, path) == "elementwise"
    # Kernels of the loss are no optimizer kernels, even in a step that has both.
    assert kernel_category(LOG, ("step", "loss")) == "softmax"


def test_any_text_has_a_category():
    for name in ("", "<>", "_Z", "_Z99", "void ", "((", "at::", "é" * 500, "_ZN2at"):
        assert kernel_category(name) in CATEGORIES and len(short_name(name)) <= 72
