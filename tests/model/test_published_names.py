"""Published names on Hugging Face: each finds the preset of its architecture and the types of its weights.

`weights` is the type of the routed experts, or of the MLP where there are none: that of the release's
`quantization_config` (AWQ, GPTQ and w4a16: 4 bit in groups of 128; bnb-4bit: NF4 with double quantisation).
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from simserve.cli import app
from simserve.deploy.build import Parts
from simserve.errors import ScenarioError
from simserve.model import load_model
from simserve.model.dtypes import AUTO, weight_types
from simserve.model.layers import MoeFfn
from simserve.scenario import load_scenario
from simserve.validation.measured_runs import model_preset

TABLE = """
meta-llama/Llama-2-7b-hf                                     llama-2-7b             bf16
meta-llama/Llama-2-7b-chat-hf                                llama-2-7b             bf16
TheBloke/Llama-2-7B-Chat-AWQ                                 llama-2-7b             int4
TheBloke/Llama-2-7B-Chat-GPTQ                                llama-2-7b             int4
meta-llama/Llama-2-13b-hf                                    llama-2-13b            bf16
meta-llama/Llama-2-13b-chat-hf                               llama-2-13b            bf16
TheBloke/Llama-2-13B-chat-AWQ                                llama-2-13b            int4
meta-llama/Llama-2-70b-chat-hf                               llama-2-70b            bf16
TheBloke/Llama-2-70B-Chat-AWQ                                llama-2-70b            int4
codellama/CodeLlama-34b-hf                                   codellama-34b          bf16
codellama/CodeLlama-34b-Instruct-hf                          codellama-34b          bf16
codellama/CodeLlama-34b-Python-hf                            codellama-34b          bf16
meta-llama/Meta-Llama-3-8B                                   llama-3-8b             bf16
meta-llama/Meta-Llama-3-8B-Instruct                          llama-3-8b             bf16
neuralmagic/Meta-Llama-3-8B-Instruct-FP8                     llama-3-8b             fp8
meta-llama/Meta-Llama-3-70B-Instruct                         llama-3-70b            bf16
neuralmagic/Meta-Llama-3-70B-Instruct-FP8                    llama-3-70b            fp8
casperhansen/llama-3-70b-instruct-awq                        llama-3-70b            int4
meta-llama/Llama-3.1-8B                                      llama-3.1-8b           bf16
meta-llama/Llama-3.1-8B-Instruct                             llama-3.1-8b           bf16
meta-llama/Meta-Llama-3.1-8B-Instruct                        llama-3.1-8b           bf16
NousResearch/Meta-Llama-3.1-8B-Instruct                      llama-3.1-8b           bf16
NousResearch/Hermes-3-Llama-3.1-8B                           llama-3.1-8b           bf16
nvidia/Llama-3.1-8B-Instruct-FP8                             llama-3.1-8b           fp8
nvidia/Llama-3.1-8B-Instruct-NVFP4                           llama-3.1-8b           nvfp4
RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8                      llama-3.1-8b           fp8
RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-dynamic              llama-3.1-8b           fp8
neuralmagic/Meta-Llama-3.1-8B-Instruct-quantized.w8a8        llama-3.1-8b           int8
neuralmagic/Meta-Llama-3.1-8B-Instruct-quantized.w4a16       llama-3.1-8b           int4
hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4           llama-3.1-8b           int4
hugging-quants/Meta-Llama-3.1-8B-Instruct-GPTQ-INT4          llama-3.1-8b           int4
unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit                  llama-3.1-8b           nf4_double
unsloth/Meta-Llama-3.1-8B-bnb-4bit                           llama-3.1-8b           nf4_double
deepseek-ai/DeepSeek-R1-Distill-Llama-8B                     llama-3.1-8b           bf16
meta-llama/Llama-3.1-70B-Instruct                            llama-3.1-70b          bf16
nvidia/Llama-3.1-70B-Instruct-FP8                            llama-3.1-70b          fp8
RedHatAI/Meta-Llama-3.1-70B-Instruct-FP8                     llama-3.1-70b          fp8
hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4          llama-3.1-70b          int4
hugging-quants/Meta-Llama-3.1-70B-Instruct-GPTQ-INT4         llama-3.1-70b          int4
nvidia/Llama-3.1-Nemotron-70B-Instruct-HF                    llama-3.1-70b          bf16
NousResearch/Hermes-3-Llama-3.1-70B                          llama-3.1-70b          bf16
meta-llama/Llama-3.1-405B-Instruct                           llama-3.1-405b         bf16
meta-llama/Llama-3.1-405B-Instruct-FP8                       llama-3.1-405b         fp8
nvidia/Llama-3.1-405B-Instruct-FP8                           llama-3.1-405b         fp8
nvidia/Llama-3.1-405B-Instruct-NVFP4                         llama-3.1-405b         nvfp4
hugging-quants/Meta-Llama-3.1-405B-Instruct-AWQ-INT4         llama-3.1-405b         int4
meta-llama/Llama-3.2-1B                                      llama-3.2-1b           bf16
meta-llama/Llama-3.2-1B-Instruct                             llama-3.2-1b           bf16
unsloth/Llama-3.2-1B-Instruct-bnb-4bit                       llama-3.2-1b           nf4_double
RedHatAI/Llama-3.2-1B-Instruct-FP8                           llama-3.2-1b           fp8
meta-llama/Llama-3.2-3B                                      llama-3.2-3b           bf16
meta-llama/Llama-3.2-3B-Instruct                             llama-3.2-3b           bf16
RedHatAI/Llama-3.2-3B-Instruct-FP8-dynamic                   llama-3.2-3b           fp8
meta-llama/Llama-3.3-70B-Instruct                            llama-3.3-70b          bf16
nvidia/Llama-3.3-70B-Instruct-FP8                            llama-3.3-70b          fp8
nvidia/Llama-3.3-70B-Instruct-FP4                            llama-3.3-70b          nvfp4
nvidia/Llama-3.3-70B-Instruct-NVFP4                          llama-3.3-70b          nvfp4
RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic                  llama-3.3-70b          fp8
RedHatAI/Llama-3.3-70B-Instruct-quantized.w4a16              llama-3.3-70b          int4
RedHatAI/Llama-3.3-70B-Instruct-quantized.w8a8               llama-3.3-70b          int8
casperhansen/llama-3.3-70b-instruct-awq                      llama-3.3-70b          int4
ibnzterrell/Meta-Llama-3.3-70B-Instruct-AWQ-INT4             llama-3.3-70b          int4
unsloth/Llama-3.3-70B-Instruct-bnb-4bit                      llama-3.3-70b          nf4_double
deepseek-ai/DeepSeek-R1-Distill-Llama-70B                    llama-3.3-70b          bf16
meta-llama/Llama-4-Scout-17B-16E                             llama-4-scout          bf16
meta-llama/Llama-4-Scout-17B-16E-Instruct                    llama-4-scout          bf16
nvidia/Llama-4-Scout-17B-16E-Instruct-FP8                    llama-4-scout          fp8
nvidia/Llama-4-Scout-17B-16E-Instruct-NVFP4                  llama-4-scout          nvfp4
RedHatAI/Llama-4-Scout-17B-16E-Instruct-quantized.w4a16      llama-4-scout          int4
meta-llama/Llama-4-Maverick-17B-128E-Instruct                llama-4-maverick       bf16
meta-llama/Llama-4-Maverick-17B-128E-Instruct-FP8            llama-4-maverick       fp8
nvidia/Llama-4-Maverick-17B-128E-Instruct-NVFP4              llama-4-maverick       nvfp4
mistralai/Mistral-7B-v0.1                                    mistral-7b-v0.1        bf16
mistralai/Mistral-7B-Instruct-v0.1                           mistral-7b-v0.1        bf16
mistralai/Mistral-7B-Instruct-v0.2                           mistral-7b-v0.1        bf16
mistralai/Mistral-7B-v0.3                                    mistral-7b             bf16
mistralai/Mistral-7B-Instruct-v0.3                           mistral-7b             bf16
TheBloke/Mistral-7B-Instruct-v0.2-AWQ                        mistral-7b-v0.1        int4
TheBloke/Mistral-7B-Instruct-v0.2-GPTQ                       mistral-7b-v0.1        int4
RedHatAI/Mistral-7B-Instruct-v0.3-GPTQ-4bit                  mistral-7b             int4
unsloth/mistral-7b-instruct-v0.3-bnb-4bit                    mistral-7b             nf4_double
mistralai/Mistral-Nemo-Base-2407                             mistral-nemo-12b       bf16
mistralai/Mistral-Nemo-Instruct-2407                         mistral-nemo-12b       bf16
RedHatAI/Mistral-Nemo-Instruct-2407-FP8                      mistral-nemo-12b       fp8
mistralai/Ministral-8B-Instruct-2410                         ministral-8b           bf16
mistralai/Mistral-Small-24B-Base-2501                        mistral-small-24b      bf16
mistralai/Mistral-Small-24B-Instruct-2501                    mistral-small-24b      bf16
mistralai/Mistral-Small-3.1-24B-Instruct-2503                mistral-small-24b      bf16
mistralai/Mistral-Small-3.2-24B-Instruct-2506                mistral-small-24b      bf16
RedHatAI/Mistral-Small-24B-Instruct-2501-FP8-dynamic         mistral-small-24b      fp8
RedHatAI/Mistral-Small-3.1-24B-Instruct-2503-quantized.w4a16 mistral-small-24b      int4
mistralai/Devstral-Small-2505                                mistral-small-24b      bf16
mistralai/Mixtral-8x7B-v0.1                                  mixtral-8x7b           bf16
mistralai/Mixtral-8x7B-Instruct-v0.1                         mixtral-8x7b           bf16
TheBloke/Mixtral-8x7B-Instruct-v0.1-AWQ                      mixtral-8x7b           int4
TheBloke/Mixtral-8x7B-Instruct-v0.1-GPTQ                     mixtral-8x7b           int4
RedHatAI/Mixtral-8x7B-Instruct-v0.1-FP8                      mixtral-8x7b           fp8
mistralai/Mixtral-8x22B-v0.1                                 mixtral-8x22b          bf16
mistralai/Mixtral-8x22B-Instruct-v0.1                        mixtral-8x22b          bf16
RedHatAI/Mixtral-8x22B-Instruct-v0.1-FP8                     mixtral-8x22b          fp8
Qwen/Qwen2.5-0.5B-Instruct                                   qwen2.5-0.5b           bf16
Qwen/Qwen2.5-1.5B-Instruct                                   qwen2.5-1.5b           bf16
Qwen/Qwen2.5-3B-Instruct                                     qwen2.5-3b             bf16
Qwen/Qwen2.5-7B                                              qwen2.5-7b             bf16
Qwen/Qwen2.5-7B-Instruct                                     qwen2.5-7b             bf16
Qwen/Qwen2.5-7B-Instruct-AWQ                                 qwen2.5-7b             int4
Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8                           qwen2.5-7b             int8
Qwen/Qwen2.5-Coder-7B-Instruct                               qwen2.5-7b             bf16
RedHatAI/Qwen2.5-7B-Instruct-FP8-dynamic                     qwen2.5-7b             fp8
Qwen/Qwen2.5-14B-Instruct                                    qwen2.5-14b            bf16
deepseek-ai/DeepSeek-R1-Distill-Qwen-14B                     qwen2.5-14b            bf16
Qwen/Qwen2.5-32B-Instruct                                    qwen2.5-32b            bf16
Qwen/Qwen2.5-32B-Instruct-AWQ                                qwen2.5-32b            int4
Qwen/Qwen2.5-Coder-32B-Instruct                              qwen2.5-32b            bf16
Qwen/QwQ-32B                                                 qwen2.5-32b            bf16
Qwen/QwQ-32B-AWQ                                             qwen2.5-32b            int4
deepseek-ai/DeepSeek-R1-Distill-Qwen-32B                     qwen2.5-32b            bf16
RedHatAI/DeepSeek-R1-Distill-Qwen-32B-FP8-dynamic            qwen2.5-32b            fp8
Qwen/Qwen2.5-72B-Instruct                                    qwen2.5-72b            bf16
Qwen/Qwen2.5-72B-Instruct-AWQ                                qwen2.5-72b            int4
Qwen/Qwen2.5-72B-Instruct-GPTQ-Int4                          qwen2.5-72b            int4
RedHatAI/Qwen2.5-72B-Instruct-FP8-dynamic                    qwen2.5-72b            fp8
deepseek-ai/DeepSeek-R1-Distill-Qwen-7B                      qwen2.5-7b             bf16
deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B                    qwen2.5-1.5b           bf16
Qwen/Qwen3-0.6B                                              qwen3-0.6b             bf16
Qwen/Qwen3-0.6B-Base                                         qwen3-0.6b             bf16
Qwen/Qwen3-1.7B                                              qwen3-1.7b             bf16
Qwen/Qwen3-1.7B-FP8                                          qwen3-1.7b             fp8_block
Qwen/Qwen3-4B                                                qwen3-4b               bf16
Qwen/Qwen3-4B-AWQ                                            qwen3-4b               int4
Qwen/Qwen3-4B-Thinking-2507                                  qwen3-4b               bf16
Qwen/Qwen3-8B                                                qwen3-8b               bf16
Qwen/Qwen3-8B-FP8                                            qwen3-8b               fp8_block
Qwen/Qwen3-8B-AWQ                                            qwen3-8b               int4
nvidia/Qwen3-8B-FP8                                          qwen3-8b               fp8
nvidia/Qwen3-8B-NVFP4                                        qwen3-8b               nvfp4
deepseek-ai/DeepSeek-R1-0528-Qwen3-8B                        qwen3-8b               bf16
Qwen/Qwen3-14B                                               qwen3-14b              bf16
Qwen/Qwen3-14B-FP8                                           qwen3-14b              fp8_block
nvidia/Qwen3-14B-NVFP4                                       qwen3-14b              nvfp4
Qwen/Qwen3-32B                                               qwen3-32b              bf16
Qwen/Qwen3-32B-FP8                                           qwen3-32b              fp8_block
nvidia/Qwen3-32B-NVFP4                                       qwen3-32b              nvfp4
RedHatAI/Qwen3-32B-FP8-dynamic                               qwen3-32b              fp8
RedHatAI/Qwen3-32B-quantized.w4a16                           qwen3-32b              int4
RedHatAI/Qwen3-32B-NVFP4                                     qwen3-32b              nvfp4
unsloth/Qwen3-32B-bnb-4bit                                   qwen3-32b              nf4_double
unsloth/Qwen3-32B-unsloth-bnb-4bit                           qwen3-32b              nf4_double
Qwen/Qwen3-30B-A3B                                           qwen3-30b-a3b          bf16
Qwen/Qwen3-30B-A3B-FP8                                       qwen3-30b-a3b          fp8_block
Qwen/Qwen3-30B-A3B-GPTQ-Int4                                 qwen3-30b-a3b          int4
Qwen/Qwen3-30B-A3B-Thinking-2507                             qwen3-30b-a3b          bf16
Qwen/Qwen3-Coder-30B-A3B-Instruct-FP8                        qwen3-30b-a3b          fp8_block
nvidia/Qwen3-30B-A3B-NVFP4                                   qwen3-30b-a3b          nvfp4
Qwen/Qwen3-235B-A22B                                         qwen3-235b-a22b        bf16
Qwen/Qwen3-235B-A22B-FP8                                     qwen3-235b-a22b        fp8_block
Qwen/Qwen3-235B-A22B-GPTQ-Int4                               qwen3-235b-a22b        int4
Qwen/Qwen3-235B-A22B-Instruct-2507                           qwen3-235b-a22b        bf16
Qwen/Qwen3-235B-A22B-Thinking-2507-FP8                       qwen3-235b-a22b        fp8_block
nvidia/Qwen3-235B-A22B-NVFP4                                 qwen3-235b-a22b        nvfp4
Qwen/Qwen3-Coder-480B-A35B-Instruct                          qwen3-coder-480b-a35b  bf16
Qwen/Qwen3-Next-80B-A3B-Instruct                             qwen3-next-80b-a3b     bf16
Qwen/Qwen3-Next-80B-A3B-Instruct-FP8                         qwen3-next-80b-a3b     fp8_block
Qwen/Qwen3.5-35B-A3B                                         qwen3.5-35b-a3b        bf16
Qwen/Qwen3.5-122B-A10B-FP8                                   qwen3.5-122b-a10b      fp8_block
Qwen/Qwen3.5-397B-A17B                                       qwen3.5-397b-a17b      bf16
nvidia/Qwen3.5-397B-A17B-NVFP4                               qwen3.5-397b-a17b      nvfp4
deepseek-ai/DeepSeek-V2                                      deepseek-v2            bf16
deepseek-ai/DeepSeek-V2-Chat                                 deepseek-v2            bf16
deepseek-ai/DeepSeek-V2.5                                    deepseek-v2            bf16
deepseek-ai/DeepSeek-V2-Lite                                 deepseek-v2-lite       bf16
deepseek-ai/DeepSeek-V2-Lite-Chat                            deepseek-v2-lite       bf16
deepseek-ai/DeepSeek-Coder-V2-Lite-Instruct                  deepseek-v2-lite       bf16
deepseek-ai/DeepSeek-Coder-V2-Instruct                       deepseek-v2            bf16
deepseek-ai/DeepSeek-V3                                      deepseek-v3            fp8_block
deepseek-ai/DeepSeek-V3-Base                                 deepseek-v3            fp8_block
deepseek-ai/DeepSeek-V3-0324                                 deepseek-v3            fp8_block
deepseek-ai/DeepSeek-V3.1-Terminus                           deepseek-v3            fp8_block
deepseek-ai/DeepSeek-R1                                      deepseek-v3            fp8_block
deepseek-ai/DeepSeek-R1-0528                                 deepseek-v3            fp8_block
deepseek-ai/DeepSeek-R1-Zero                                 deepseek-v3            fp8_block
nvidia/DeepSeek-R1-FP4                                       deepseek-v3            nvfp4
nvidia/DeepSeek-R1-NVFP4                                     deepseek-v3            nvfp4
nvidia/DeepSeek-R1-0528-FP4-v2                               deepseek-v3            nvfp4
nvidia/DeepSeek-V3-0324-FP4                                  deepseek-v3            nvfp4
cognitivecomputations/DeepSeek-R1-AWQ                        deepseek-v3            int4
cognitivecomputations/DeepSeek-V3-AWQ                        deepseek-v3            int4
deepseek-ai/DeepSeek-V3.2-Exp                                deepseek-v3.2          fp8_block
deepseek-ai/DeepSeek-V3.2                                    deepseek-v3.2          fp8_block
nvidia/DeepSeek-V3.2-NVFP4                                   deepseek-v3.2          nvfp4
zai-org/GLM-4.5                                              glm-4.5                bf16
zai-org/GLM-4.6                                              glm-4.5                bf16
zai-org/GLM-4.5-Air                                          glm-4.5-air            bf16
cpatonn/GLM-4.5-Air-AWQ-4bit                                 glm-4.5-air            int4
zai-org/GLM-5                                                glm-5                  bf16
zai-org/GLM-5-FP8                                            glm-5                  fp8_block
nvidia/GLM-5-NVFP4                                           glm-5                  nvfp4
openai/gpt-oss-20b                                           gpt-oss-20b            mxfp4
openai/gpt-oss-120b                                          gpt-oss-120b           mxfp4
unsloth/gpt-oss-120b-BF16                                    gpt-oss-120b           bf16
openai/gpt-oss-safeguard-20b                                 gpt-oss-20b            mxfp4
moonshotai/Kimi-K2-Instruct                                  kimi-k2-instruct       fp8_block
moonshotai/Kimi-K2-Base                                      kimi-k2-instruct       fp8_block
moonshotai/Kimi-K2-Instruct-0905                             kimi-k2-instruct       fp8_block
moonshotai/Kimi-K2-Thinking                                  kimi-k2-instruct       int4_g32
moonshotai/Kimi-K2.5                                         kimi-k2.5              int4_g32
nvidia/Kimi-K2.5-NVFP4                                       kimi-k2.5              nvfp4
moonshotai/Kimi-Linear-48B-A3B-Instruct                      kimi-linear-48b-a3b    bf16
MiniMaxAI/MiniMax-M2                                         minimax-m2.5           fp8_block
MiniMaxAI/MiniMax-M2.5                                       minimax-m2.5           fp8_block
nvidia/MiniMax-M2.5-NVFP4                                    minimax-m2.5           nvfp4
google/gemma-3-1b-it                                         gemma-3-1b             bf16
google/gemma-3-4b-it                                         gemma-3-4b             bf16
google/gemma-3-12b-it                                        gemma-3-12b            bf16
google/gemma-3-27b-it                                        gemma-3-27b            bf16
google/gemma-3-27b-pt                                        gemma-3-27b            bf16
RedHatAI/gemma-3-27b-it-FP8-dynamic                          gemma-3-27b            fp8
RedHatAI/gemma-3-27b-it-quantized.w4a16                      gemma-3-27b            int4
unsloth/gemma-3-27b-it-bnb-4bit                              gemma-3-27b            nf4_double
unsloth/gemma-3-12b-it-unsloth-bnb-4bit                      gemma-3-12b            nf4_double
microsoft/phi-4                                              phi-4                  bf16
microsoft/Phi-4-reasoning                                    phi-4                  bf16
unsloth/phi-4-bnb-4bit                                       phi-4                  nf4_double
RedHatAI/phi-4-FP8-dynamic                                   phi-4                  fp8
nvidia/Phi-4-reasoning-plus-FP8                              phi-4                  fp8
stepfun-ai/step3                                             step-3                 bf16
meituan-longcat/LongCat-Flash-Chat                           longcat-flash          bf16
meituan-longcat/LongCat-Flash-Thinking                       longcat-flash          bf16
hugging-quants/Meta-Llama-3.1-8B-Instruct-BNB-NF4            llama-3.1-8b           nf4_double
Qwen/Qwen3-VL-2B-Instruct                                    qwen3-1.7b             bf16
Qwen/Qwen3-VL-8B-Instruct                                    qwen3-8b               bf16
Qwen/Qwen3-VL-8B-Instruct-FP8                                qwen3-8b               fp8_block
Qwen/Qwen3-VL-30B-A3B-Instruct                               qwen3-30b-a3b          bf16
Qwen/Qwen3-VL-32B-Thinking                                   qwen3-32b              bf16
Qwen/Qwen3-VL-235B-A22B-Instruct                             qwen3-235b-a22b        bf16
Qwen/Qwen3.6-35B-A3B                                         qwen3.5-35b-a3b        bf16
mistralai/Devstral-Small-2507                                mistral-small-24b      bf16
"""
NAMES = [tuple(line.split()) for line in TABLE.strip().splitlines()]


def test_the_table_is_long_and_wide() -> None:
    assert len(NAMES) >= 150
    assert len({name for name, _, _ in NAMES}) == len(NAMES)
    assert len({preset for _, preset, _ in NAMES}) >= 61
    kinds = Counter(weights for _, _, weights in NAMES)
    assert min(kinds[kind] for kind in ("bf16", "fp8", "fp8_block", "int4", "nvfp4", "nf4_double")) >= 8


@pytest.mark.parametrize(("name", "preset", "weights"), NAMES)
def test_a_published_name(name: str, preset: str, weights: str) -> None:
    model = load_model(name)
    types = weight_types(model.checkpoint.weights_dtype(AUTO))
    routed = any(isinstance(ffn, MoeFfn) for group in model.layers for ffn in group.ffns)
    assert model.name == preset
    assert (types.routed_experts if routed else types.dense) == weights
    assert model_preset(name) == preset  # in measured files


def test_names_in_scenarios(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    for name, preset, _ in NAMES:
        path.write_text(
            f"name: x\nmodel: {name}\nengine: vllm-0.33\npools: [{{gpu: h100_sxm}}]\n"
            "workload: {trace: traces/chat.csv.gz}\n"
        )
        assert Parts().of(load_scenario(path))[0].name == preset


@pytest.mark.parametrize(
    ("name", "preset"), {weights: (name, preset) for name, preset, weights in NAMES}.values()
)
def test_names_on_the_command_line(name: str, preset: str) -> None:
    done = CliRunner().invoke(app, ["models", "show", name])
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(preset)


def test_a_release_of_mixed_precision_asks_for_its_types() -> None:
    """NVIDIA's Qwen3.6 has FP8 and NVFP4 layers: hf_quant_config.json in aiconfigurator-core 0.12.0."""
    model = load_model("nvidia/Qwen3.6-35B-A3B-NVFP4")
    with pytest.raises(ScenarioError, match="MIXED_PRECISION"):
        model.checkpoint.weights_dtype(AUTO)
