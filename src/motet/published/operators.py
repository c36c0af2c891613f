"""The operators that a published model may use: those that compute with the rows they are given.

Not allowed are operators with graphs inside (Loop, If, Scan), with random numbers, text, sequences or optional
values, and all operators outside ONNX's own two domains. Knows names only.
"""

from __future__ import annotations

DOMAINS = {"": "ai.onnx", "ai.onnx": "ai.onnx", "ai.onnx.ml": "ai.onnx.ml"}

_ARITHMETIC = """
Abs Add And Ceil Clip Div Equal Erf Exp Floor Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual Log Max Mean
Min Mod Mul Neg Not Or Pow Reciprocal Round Sign Sqrt Sub Sum Where Xor
Acos Acosh Asin Asinh Atan Atanh Cos Cosh Sin Sinh Tan
"""
_NETWORKS = """
Celu Elu Gelu HardSigmoid HardSwish LeakyRelu LogSoftmax Mish PRelu Relu Selu Sigmoid Softmax Softplus Softsign
Swish Tanh ThresholdedRelu
Gemm MatMul Conv AveragePool MaxPool GlobalAveragePool GlobalMaxPool BatchNormalization GroupNormalization
InstanceNormalization LayerNormalization RMSNormalization LpNormalization GRU LSTM RNN Dropout
"""
_REDUCTIONS = """
ArgMax ArgMin CumSum ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd
ReduceSum ReduceSumSquare TopK
"""
_SHAPES = """
Cast CastLike Concat Constant Flatten Gather GatherElements GatherND Identity Reshape Shape Size Slice Split
Squeeze Transpose Unsqueeze
"""
_ML = """
ArrayFeatureExtractor Binarizer FeatureVectorizer Imputer LabelEncoder LinearClassifier LinearRegressor
Normalizer OneHotEncoder SVMClassifier SVMRegressor Scaler TreeEnsemble TreeEnsembleClassifier
TreeEnsembleRegressor
"""
# The size of their output is a number in the model, which must be known before the model runs.
GROWING = frozenset(["ConstantOfShape", "Expand", "OneHot", "Pad", "Range", "Tile"])

KNOWN = {
    "ai.onnx": frozenset(f"{_ARITHMETIC} {_NETWORKS} {_REDUCTIONS} {_SHAPES}".split()) | GROWING,
    "ai.onnx.ml": frozenset(_ML.split()),
}
