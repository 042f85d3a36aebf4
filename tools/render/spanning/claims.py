"""Claims that do not stand beside the builder of their stem yet."""

from tools.render.claims import Claim
from tools.render.spanning import judges

CLAIMS = [
    Claim(
        name="backward_about_twice",
        problem="benchmarking_script",
        stem="end_to_end",
        sentence="In fp32 a backward pass takes about twice as long as the forward pass of the same step, which "
        "is the ratio of their FLOPs: between 1.5 and 2.5 times.",
        otherwise="In fp32 a backward pass does not always take about twice as long as the forward pass of the "
        "same step (between 1.5 and 2.5 times), although it has twice the FLOPs.",
        judge=judges.backward_is_about_twice,
    ),
    Claim(
        name="passes_steady",
        problem="benchmarking_script",
        stem="end_to_end",
        sentence="Passes vary little: in at least three of four rows the standard deviation is below a fiftieth "
        "of the mean.",
        otherwise="Passes vary: in more than one of four rows the standard deviation is a fiftieth of the mean or more.",
        judge=judges.passes_are_steady,
    ),
    Claim(
        name="small_is_launch_bound",
        problem="nsys_profile",
        stem="kernel_profile",
        sentence="In a forward pass of small at context 128 the GPU is idle for more than a third of the time; in one of "
        "2.7B at 512 for less than a twentieth.",
        otherwise="It is not so that the GPU is idle for more than a third of a forward pass of small at context 128 and "
        "for less than a twentieth of one of 2.7B at 512.",
        judge=judges.small_is_launch_bound,
    ),
    Claim(
        name="top_kernel_multiplies",
        problem="nsys_profile",
        stem="kernel_profile",
        sentence="In fp32 the kernel with the most time is a matrix product: in every forward pass, and in every forward "
        "and backward pass together.",
        otherwise="In fp32 the kernel with the most time is not a matrix product in every pass.",
        judge=judges.top_kernel_multiplies,
    ),
    Claim(
        name="training_dilutes_products",
        problem="nsys_profile",
        stem="kernel_profile",
        sentence="In fp32 matrix products take a smaller share of kernel time in a full step than in inference, at every "
        "size and context.",
        otherwise="In fp32 matrix products do not take a smaller share of kernel time in a full step than in inference at "
        "every size and context.",
        judge=judges.training_dilutes_products,
    ),
    Claim(
        name="softmax_is_memory_traffic",
        problem="nsys_profile",
        stem="kernel_profile",
        sentence="The two products of attention do more than ten times the FLOPs of softmax and take less than twice "
        "its time, in every fp32 forward pass.",
        otherwise="It is not so in every fp32 forward pass that the two products of attention do more than ten times the "
        "FLOPs of softmax and take less than twice its time.",
        judge=judges.softmax_is_memory_traffic,
    ),
    Claim(
        name="kernels_are_attributed",
        problem="nsys_profile",
        stem="kernel_profile",
        sentence="Of every row at least 99 percent of the kernel time belongs to a marked phase, and products by kernel "
        "name agree with products by operation within three percent.",
        otherwise="In some row more than a percent of the kernel time has no phase, or products by kernel name and by "
        "operation differ by more than three percent.",
        judge=judges.kernels_are_attributed,
    ),
    Claim(
        name="gain_grows",
        problem="benchmarking_mixed_precision",
        stem="end_to_end",
        sentence="At context 512 the gain from bf16 (forward and backward) grows with each step from small to 2.7B.",
        otherwise="At context 512 the gain from bf16 (forward and backward) does not grow with each step from "
        "small to 2.7B.",
        judge=judges.gain_grows_with_the_model,
    ),
    Claim(
        name="slower_where_launches_bind",
        problem="benchmarking_mixed_precision",
        stem="end_to_end",
        sentence="Wherever bf16 is slower than fp32, launches bind: twice the context changes its time by "
        "less than a fifth.",
        otherwise="bf16 is slower than fp32 also where twice the context changes the time by a fifth or more, so launches "
        "are not the whole reason.",
        judge=judges.slower_where_launches_bind,
    ),
    Claim(
        name="memory_peak_moves",
        problem="memory_profiling",
        stem="peak_memory",
        sentence="The peak of a full fp32 step of 2.7B moves: at context 512 it holds most of the activations and few "
        "gradients, at 128 most of the gradients and few activations.",
        otherwise="The peak of a full fp32 step of 2.7B does not move from the gradients at context 128 to the activations "
        "at 512.",
        judge=judges.memory_peak_moves,
    ),
    Claim(
        name="forward_peak_is_weights",
        problem="memory_profiling",
        stem="peak_memory",
        sentence="Without a graph a forward pass of 2.7B in fp32 needs little beyond its weights: less than a tenth "
        "more, at every context.",
        otherwise="Without a graph a forward pass of 2.7B in fp32 needs a tenth more than its weights, or more, somewhere.",
        judge=judges.forward_peak_is_weights,
    ),
    Claim(
        name="two_graphs_exceed_training",
        problem="memory_profiling",
        stem="peak_memory",
        sentence="At context 512 a forward pass of 2.7B while the previous graph is alive needs more than forward and "
        "backward together, in fp32.",
        otherwise="At context 512 a forward pass of 2.7B while the previous graph is alive does not need more than forward "
        "and backward together, in fp32.",
        judge=judges.two_graphs_exceed_training,
    ),
    Claim(
        name="autocast_raises_forward",
        problem="memory_profiling",
        stem="peak_memory",
        sentence="At context 512 autocast raises the forward peak of 2.7B by more than a quarter and changes that of a "
        "full step by less than a tenth.",
        otherwise="At context 512 it is not so that autocast raises the forward peak of 2.7B by more than a quarter and "
        "changes that of a full step by less than a tenth.",
        judge=judges.autocast_raises_forward,
    ),
    Claim(
        name="residual_as_derived",
        problem="memory_profiling",
        stem="peak_memory",
        sentence="A tensor of the residual stream has the derived size, batch x context x width x 4 bytes, under autocast "
        "too.",
        otherwise="Not every tensor of the residual stream has the derived size, batch x context x width x 4 bytes.",
        judge=judges.residual_as_derived,
    ),
    Claim(
        name="largest_are_scores",
        problem="memory_profiling",
        stem="peak_memory",
        sentence="At context 512 the largest allocations of a forward pass of 2.7B in fp32 are score matrices, made by "
        "the code of attention.",
        otherwise="At context 512 the largest allocations of a forward pass of 2.7B in fp32 are not score matrices made by "
        "the code of attention.",
        judge=judges.largest_are_scores,
    ),
    Claim(
        name="memory_as_predicted",
        problem="memory_profiling",
        stem="peak_memory",
        sentence="Wherever a pass fits, the most of its weights, gradients and optimizer state is within two percent of "
        "the prediction, that of its saved activations and weight copies within five.",
        otherwise="Somewhere the most of a category is further from its prediction than two percent (weights, gradients, "
        "optimizer state) or five (saved activations, weight copies).",
        judge=judges.memory_as_predicted,
    ),
    Claim(
        name="two_matrices_saved",
        problem="pytorch_attention",
        stem="attention",
        sentence="Eager attention keeps two fp32 score matrices of the batch for its backward pass: about 64 "
        "bytes per N².",
        otherwise="Eager attention does not keep the predicted 64 bytes per N² for its backward pass.",
        judge=judges.saved_memory_is_two_matrices,
    ),
    Claim(
        name="time_grows_with_square",
        problem="pytorch_attention",
        stem="attention",
        sentence="At the end of the grid the time of both passes grows with N²: by three to five times from one "
        "length to twice that.",
        otherwise="At the end of the grid the time of a pass does not grow with N².",
        judge=judges.time_grows_with_the_square,
    ),
    Claim(
        name="compiled_attention_faster",
        problem="torch_compile",
        stem="attention",
        sentence="Compiled attention is faster than eager attention, forward and backward together, in every cell.",
        otherwise="Compiled attention is not faster than eager attention in every cell.",
        judge=judges.compiled_attention_is_faster,
    ),
    Claim(
        name="compiling_gains",
        problem="torch_compile",
        stem="compile",
        sentence="Compiling the model makes the training step faster in every size and precision measured.",
        otherwise="Compiling the model does not make the training step faster in every size and precision measured.",
        judge=judges.compiling_the_model_gains,
    ),
    Claim(
        name="bf16_gains_more",
        problem="torch_compile",
        stem="compile",
        sentence="For 2.7B, compiling gains more in bf16 than in fp32, where products take most of the time.",
        otherwise="For 2.7B, compiling does not gain more in bf16 than in fp32.",
        judge=judges.bf16_gains_more_from_compiling,
    ),
]
