"""Expert-as-a-Service: experts as servers of their own, whose failure leaves the others at work.

Source: Expert-as-a-Service, arXiv 2509.17863. It claims less than 2 % of throughput lost under failures that halt plain
expert parallelism. `latency=af:copies=2` has such servers, `fail=expert:1@60s` takes one away.
"""
